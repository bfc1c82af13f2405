// What went wrong where nothing may be thrown: in destructors.
#pragma once

#include <string>

namespace testbed {

// "rank 1 (host)"; once, before there are threads.
void name_process(std::string name);
// Says "testbed: rank 1 (host): what" on standard error; nothing while an error unwinds, which will
// be told: what fails then fails because of it.
void complain(const std::string& what) noexcept;

}  // namespace testbed
