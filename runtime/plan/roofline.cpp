#include "runtime/plan/roofline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/base/errors.hpp"

namespace testbed::plan {

double Roof::attainable(double flop_per_byte) const {
  return std::min(flops_per_s, bytes_per_s * flop_per_byte);
}

double Roof::seconds(double flops, double bytes) const {
  return std::max(flops / flops_per_s, bytes / bytes_per_s);
}

Roof roof_of(const DeviceSpec& device, MathType math) {
  const auto peak = device.peak_flops.find(math);
  if (peak == device.peak_flops.end()) {
    throw ConfigError(
        fmt::format("device {} states no dense peak in {}", device.name, math_name(math)));
  }
  return {.flops_per_s = peak->second, .bytes_per_s = device.memory_bytes_per_s};
}

double intensity(const OpCost& cost) {
  return static_cast<double>(cost.flops) / static_cast<double>(cost.memory_bytes());
}

double gemm_crossing(double ridge, int64_t h, double bytes_per_element) {
  const double reach = static_cast<double>(h) - ridge * bytes_per_element;
  if (reach <= 0.0) return std::numeric_limits<double>::infinity();
  return ridge * bytes_per_element * static_cast<double>(h) / (2.0 * reach);
}

double decode_intensity(double batch, double tokens_per_pass, double bytes_per_weight) {
  return 2.0 * batch * tokens_per_pass / bytes_per_weight;
}

}  // namespace testbed::plan
