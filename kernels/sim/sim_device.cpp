#include "kernels/sim/sim_device.hpp"

#include <sys/mman.h>

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

WeightMatrix SimDevice::allocate_weight(int64_t n_rows, int64_t n_cols, DType dtype) {
  static const auto nothing = std::make_shared<NoStorage>();
  return {n_rows, n_cols, dtype, nothing};
}

void SimDevice::store_rows(const WeightMatrix& /*weight*/,
                           int64_t /*first_row*/,
                           TensorView /*rows*/) {
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

}  // namespace testbed
