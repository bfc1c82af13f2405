#include "kernels/sim/sim_device.hpp"

#include <sys/mman.h>

#include <vector>

#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"
#include "kernels/sim/op_time.hpp"

namespace testbed {
namespace {

// Address space without memory: a read or write of it is a fault, at once.
constexpr size_t reserved_bytes = size_t{1} << 44;

std::byte* reserved() {
  static std::byte* const base = [] {
    void* const address = mmap(
        nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) throw InternalError("no address space for simulated tensors");
    return static_cast<std::byte*>(address);
  }();
  return base;
}

class NoStorage final : public WeightMatrix::Storage {};

}  // namespace

bool is_simulated_memory(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  return at >= reserved() && at < reserved() + reserved_bytes;
}

MathType math_of(const DeviceSpec& device, DType operands) {
  const auto first_of = [&](std::initializer_list<MathType> types) {
    for (const MathType type : types) {
      if (device.peak_flops.contains(type)) return type;
    }
    throw ConfigError(std::string(device.description) + " has no arithmetic for " +
                      std::string(dtype_name(operands)));
  };
  if (operands == DType::F32) return first_of({MathType::f32});
  if (operands == DType::F16) return first_of({MathType::f16, MathType::f32});
  return first_of({MathType::bf16, MathType::f16, MathType::f32});
}

SimDevice::SimDevice(const DeviceSpec& spec, SimClock& clock, DType compute_dtype, uint64_t seed)
    : Device(clock),
      spec_(spec),
      sim_clock_(clock),
      compute_dtype_(compute_dtype),
      draws_(mix64(seed)) {}

Tensor SimDevice::allocate(DType dtype, Shape shape) {
  CHECK(dtype_bytes(dtype, shape.n_elements()) <= static_cast<int64_t>(reserved_bytes));
  return {reserved(), dtype, shape};
}

WeightMatrix SimDevice::allocate_weight(int64_t n_rows,
                                        int64_t n_cols,
                                        const WeightFormat& format) {
  static const auto nothing = std::make_shared<NoStorage>();
  return {n_rows, n_cols, format, nothing};
}

void SimDevice::store_rows(const WeightMatrix& /*weight*/,
                           int64_t /*first_row*/,
                           TensorView /*rows*/) {
  throw InternalError("a simulated device stores no weights");
}

void SimDevice::store_rows(const WeightMatrix& /*weight*/,
                           int64_t /*first_row*/,
                           const QuantisedRows& /*rows*/) {
  throw InternalError("a simulated device stores no weights");
}

void SimDevice::do_charge(OpKind kind, const OpCost& cost, const OpShape& shape, DType operands) {
  sim_clock_.add(pass_op_seconds(spec_, kind, cost, shape, math_of(spec_, operands)));
}

void SimDevice::do_row_max(TensorView logits, std::span<RowMax> out) {
  const auto n = static_cast<uint64_t>(logits.row_elements());
  CHECK(n > 0);
  for (RowMax& row : out) {
    draws_ = mix64(draws_);
    row.value = static_cast<float>(draws_ >> 40);
    row.index = static_cast<int32_t>(mix64(draws_) % n);
    row.finite = true;
  }
}

namespace {

// k distinct numbers of [0, n), every set as likely (Floyd's algorithm, Bentley & Floyd 1987): each
// step takes a draw from one number more, or that number if the draw is taken. Ascending.
void draw_distinct(uint64_t& draw, int64_t n, std::span<int32_t> out) {
  const auto k = static_cast<int64_t>(out.size());
  for (int64_t i = 0; i < k; ++i) {
    draw = mix64(draw);
    const int64_t last = n - k + i;
    const auto number = static_cast<int32_t>(draw % static_cast<uint64_t>(last + 1));
    const auto end = out.begin() + i;
    out[static_cast<size_t>(i)] =
        std::find(out.begin(), end, number) != end ? static_cast<int32_t>(last) : number;
  }
  std::sort(out.begin(), out.end());
}

}  // namespace

// The groups that may be chosen from first, then top_k distinct experts of theirs, uniformly; equal
// weights.
void SimDevice::do_route(TensorView logits,
                         const RoutingParams& params,
                         TensorView ids,
                         TensorView weights) {
  const int64_t n_experts = logits.shape()[1];
  const int64_t top_k = params.rule.top_k;
  CHECK(static_cast<int64_t>(params.row_keys.size()) == logits.n_rows());
  const int64_t group_size = n_experts / params.rule.n_groups;
  std::vector<int32_t> groups(static_cast<size_t>(params.rule.top_k_groups));
  for (int64_t row = 0; row < logits.n_rows(); ++row) {
    uint64_t draw = params.row_keys[static_cast<size_t>(row)];
    draw_distinct(draw, params.rule.n_groups, groups);
    const std::span<int32_t> chosen(ids.as<int32_t>() + row * top_k, static_cast<size_t>(top_k));
    draw_distinct(draw, params.rule.top_k_groups * group_size, chosen);
    for (int32_t& id : chosen) {
      id = static_cast<int32_t>(groups[static_cast<size_t>(id / group_size)] * group_size +
                                id % group_size);
    }
    std::fill_n(weights.as<float>() + row * top_k, top_k, 1.0F / static_cast<float>(top_k));
  }
}

}  // namespace testbed
