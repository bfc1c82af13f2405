#include "runtime/measure/bubble.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/base/check.hpp"

namespace testbed {

std::optional<double> flushed_bubble(int64_t n_stages,
                                     int64_t n_microbatches,
                                     int64_t virtual_stages) {
  CHECK(n_stages >= 1 && n_microbatches >= 1 && virtual_stages >= 1);
  const auto p = static_cast<double>(n_stages);
  const auto m = static_cast<double>(n_microbatches);
  const auto v = static_cast<double>(virtual_stages);
  if (virtual_stages == 1 || n_microbatches % n_stages == 0) {
    return (p - 1.0) / (v * m + p - 1.0);
  }
  if (n_microbatches < n_stages) return 1.0 - v * m / ((v - 1.0) * p + p - 1.0 + m);
  return std::nullopt;
}

double decode_bubble(int64_t n_stages, int64_t n_microbatches) {
  CHECK(n_stages >= 1 && n_microbatches >= 1);
  return std::max(0.0, 1.0 - static_cast<double>(n_microbatches) / static_cast<double>(n_stages));
}

double bubble_of_stages(std::span<const double> busy, int64_t n_microbatches, bool flushed) {
  CHECK(!busy.empty() && n_microbatches >= 1);
  const double all = std::accumulate(busy.begin(), busy.end(), 0.0);
  const double longest = *std::max_element(busy.begin(), busy.end());
  const auto m = static_cast<double>(n_microbatches);
  const double time = flushed ? (all + (m - 1.0) * longest) / m : std::max(longest, all / m);
  return time > 0.0 ? 1.0 - all / (static_cast<double>(busy.size()) * time) : 0.0;
}

}  // namespace testbed
