#include "runtime/probe/timing.hpp"

#include <algorithm>

namespace testbed {

double device_seconds(Device& device, uint64_t key, const std::function<void()>& work) {
  constexpr int64_t least_ns = 1;  // a clock's step: rates stay finite
  int64_t begin = 0;
  int64_t end = 0;
  device.section(key,
                 [&] {
                   begin = device.clock().now_ns();
                   work();
                   end = device.clock().now_ns();
                 },
                 {});
  device.settle_stamps();
  const int64_t ns = device.stamp_ns(end) - device.stamp_ns(begin);
  return static_cast<double>(std::max(least_ns, ns)) * 1e-9;
}

}  // namespace testbed
