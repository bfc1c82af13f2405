// The processor's name, as the operating system gives it.
#pragma once

#include <string>

namespace testbed::cpu {

std::string processor_name();

}  // namespace testbed::cpu
