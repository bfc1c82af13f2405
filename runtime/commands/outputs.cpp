#include "runtime/commands/outputs.hpp"

#include "runtime/report/atomic_file.hpp"

namespace testbed {

FILE* terminal(const OutputConfig& output) { return output.stdout_is_taken() ? stderr : stdout; }

void check_all_writable(std::initializer_list<const std::optional<std::string>*> paths) {
  for (const std::optional<std::string>* path : paths) {
    if (path->has_value()) check_writable(**path);
  }
}

}  // namespace testbed
