#include "runtime/accept/soak.hpp"

#include <algorithm>

#include "runtime/measure/statistics.hpp"

namespace testbed {

std::optional<StepDrift> step_drift(std::span<const double> step_ms, double tolerance) {
  const size_t third = step_ms.size() / 3;
  if (third < 3) return std::nullopt;
  const std::span<const double> first = step_ms.first(third);
  const std::span<const double> last = step_ms.last(third);
  StepDrift drift{.first_ms = median(first), .last_ms = median(last)};
  if (drift.first_ms <= 0.0) return std::nullopt;
  drift.change = drift.last_ms / drift.first_ms - 1.0;
  drift.beyond_spread =
      drift.change > tolerance && percentile(last, 25.0) > percentile(first, 90.0);
  return drift;
}

std::vector<double> condensed(std::span<const double> step_ms, size_t most) {
  const size_t n = step_ms.size();
  const size_t n_parts = std::min(n, most);
  std::vector<double> parts;
  parts.reserve(n_parts);
  for (size_t i = 0; i < n_parts; ++i) {
    const size_t begin = i * n / n_parts;
    const size_t end = (i + 1) * n / n_parts;
    parts.push_back(median(step_ms.subspan(begin, end - begin)));
  }
  return parts;
}

}  // namespace testbed
