// CHECK: a broken invariant of our own. A user's mistake is one of the types in errors.hpp instead.
#pragma once

#include <stdexcept>
#include <string>

namespace testbed {

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace testbed

#define CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::testbed::check_failed(#condition, __FILE__, __LINE__))
