#include "runtime/accept/gemm_rate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/accept/rank_values.hpp"
#include "runtime/probe/synthetic.hpp"
#include "runtime/probe/timing.hpp"

namespace testbed {
namespace {

constexpr int64_t widths[] = {256, 512, 1024, 2048, 4096, 8192};
constexpr double busy_s = 2e-3;
constexpr int64_t most_calls = 1000;

}  // namespace

GemmRate::GemmRate(const AcceptContext& context, double sample_s) : context_(context) {
  double fastest_s = 0.0;
  for (const int64_t width : widths) {
    double mine_s = 0.0;
    agree_on(context.control, [&] {
      resize(width);
      seconds_per_call(1);  // warm-up
      mine_s = seconds_per_call(1);
    });
    fastest_s = least_of_all(context.control, mine_s);
    if (fastest_s >= busy_s) break;
  }
  n_calls_ =
      std::clamp(static_cast<int64_t>(std::ceil(sample_s / fastest_s)), int64_t{1}, most_calls);
}

void GemmRate::resize(int64_t width) {
  Device& device = context_.device;
  const DType dtype = device.compute_dtype();
  width_ = width;
  weight_ = {};
  constexpr int64_t block_rows = 256;
  const Tensor block = synthetic_tensor(dtype, {block_rows, width});
  x_ = device.allocate(dtype, {width, width});
  y_ = device.allocate(dtype, {width, width});
  weight_ = device.allocate_weight(width, width, dtype);
  for (int64_t row = 0; row < width; row += block_rows) {
    device.upload(block, x_.view().rows(row, block_rows));
    device.store_rows(weight_, row, block);
  }
}

double GemmRate::seconds_per_call(int64_t n_calls) {
  const double seconds = device_seconds(context_.device, 0, [&] {
    for (int64_t i = 0; i < n_calls; ++i) context_.device.linear(x_, weight_, {}, y_);
  });
  return seconds / static_cast<double>(n_calls);
}

double GemmRate::sample() {
  const auto n = static_cast<double>(width_);
  return 2.0 * n * n * n / seconds_per_call(n_calls_);
}

void GemmRate::load(const std::function<void()>& look) {
  device_seconds(context_.device, 0, [&] {
    for (int64_t i = 0; i < n_calls_; ++i) context_.device.linear(x_, weight_, {}, y_);
    look();
  });
}

std::string GemmRate::description() const {
  return fmt::format("products of [{0}, {0}] with [{0}, {0}]^T in {1}, {2} a sample",
                     width_,
                     dtype_name(context_.device.compute_dtype()),
                     n_calls_);
}

}  // namespace testbed
