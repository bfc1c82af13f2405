#include "kernels/probes/cuda/fusion.hpp"

#include "kernels/base/errors.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/probes/cuda/probe_support.hpp"

namespace testbed::cuda {

FusionSaving measure_fusion(Queue& queue, int64_t n_rows, int64_t width, const Effort& effort) {
  constexpr float eps = 1e-5F;
  const auto rows = [&] { return device_tensor(DType::BF16, {n_rows, width}); };
  const Tensor residual = rows();
  const Tensor x = rows();
  const Tensor out = rows();
  const Tensor weight = device_tensor(DType::F32, {width});
  fill_synthetic(queue, x);
  fill_synthetic(queue, weight);
  const auto apart = [&] {
    add(queue, residual, x);
    rms_norm(queue, residual, weight, eps, out);
  };
  const auto fused = [&] { add_rms_norm(queue, residual, x, weight, eps, out); };
  const auto result = [&](const auto& norm) {
    clear(queue, residual);
    norm();
    return values_of<uint16_t>(queue, out);
  };
  if (result(apart) != result(fused)) {
    throw DeviceError("probe of fusion: add_rms_norm differs from add and rms_norm");
  }
  Stopwatch stopwatch(queue);
  const int64_t pass_bytes = x.n_bytes();
  return {.n_rows = n_rows,
          .width = width,
          .apart_bytes = 5 * pass_bytes,
          .fused_bytes = 4 * pass_bytes,
          .apart_s = stopwatch.median_seconds(apart, effort),
          .fused_s = stopwatch.median_seconds(fused, effort)};
}

}  // namespace testbed::cuda
