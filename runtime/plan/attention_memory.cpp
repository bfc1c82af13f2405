#include "runtime/plan/attention_memory.hpp"

namespace testbed::plan {

double materialised_attention_accesses(int64_t n, int64_t d) {
  return static_cast<double>(n) * static_cast<double>(d) +
         static_cast<double>(n) * static_cast<double>(n);
}

double flash_attention_accesses(int64_t n, int64_t d, int64_t on_chip_elements) {
  const double product = static_cast<double>(n) * static_cast<double>(d);
  return product * product / static_cast<double>(on_chip_elements);
}

}  // namespace testbed::plan
