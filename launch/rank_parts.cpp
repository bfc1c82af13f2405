#include "launch/rank_parts.hpp"

#include "kernels/base/clock.hpp"
#include "parallel/comm/clock_sync.hpp"
#include "parallel/comm/inject.hpp"

namespace testbed {

double slowdown_of(const std::shared_ptr<Faults>& every, const std::shared_ptr<Faults>& own) {
  double factor = 1.0;
  for (const std::shared_ptr<Faults>& faults : {every, own}) {
    if (faults != nullptr) factor *= faults->slowdown();
  }
  return factor;
}

std::function<double()> slowed(std::function<double()> bytes_per_s, double slowdown) {
  if (slowdown == 1.0) return bytes_per_s;
  return [bytes_per_s = std::move(bytes_per_s), slowdown] {
    const int64_t begin_ns = now_ns();
    const double rate = bytes_per_s();
    const auto took_ns = static_cast<double>(now_ns() - begin_ns);
    take_time(static_cast<int64_t>((slowdown - 1.0) * took_ns), /*may_spin=*/false);
    return rate / slowdown;
  };
}

std::function<std::vector<std::string>()> deeds_of(std::shared_ptr<Faults> faults) {
  if (faults == nullptr) return {};
  return [faults = std::move(faults)] { return faults->done(); };
}

std::function<ClockEstimate()> clock_estimates(const MpiWorld& world, ControlChannel& control) {
  return [&control, hosts = world.hosts()] {
    const ClockOffset offset = estimate_clock_offset(control, hosts);
    return ClockEstimate{offset.offset_ns, offset.error_ns};
  };
}

}  // namespace testbed
