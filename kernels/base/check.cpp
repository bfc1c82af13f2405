#include "kernels/base/check.hpp"

namespace testbed {

void check_failed(const char* expression, const char* file, int line) {
  throw InternalError(std::string("CHECK failed: ") + expression + " at " + file + ":" +
                      std::to_string(line));
}

}  // namespace testbed
