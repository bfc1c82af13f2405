#include "kernels/cpu/cpu_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/packed_matrix.hpp"
#include "kernels/cpu/processor.hpp"

namespace testbed {
namespace {

class PackedStorage final : public WeightMatrix::Storage {
 public:
  PackedStorage(int64_t n_rows, int64_t n_cols, DType dtype) : matrix(n_rows, n_cols, dtype) {}
  cpu::PackedMatrix matrix;
};

cpu::PackedMatrix& packed(const WeightMatrix& weight) {
  return static_cast<PackedStorage&>(weight.storage()).matrix;
}

}  // namespace

CpuDevice::CpuDevice(std::shared_ptr<cpu::ThreadPool> pool, cpu::Isa isa, DType compute_dtype)
    : pool_(std::move(pool)), isa_(isa), compute_dtype_(compute_dtype) {
  CHECK(compute_dtype == DType::F32 || compute_dtype == DType::BF16);
}

std::string CpuDevice::description() const {
  return fmt::format("{}, {}, {} thread{}, {}",
                     cpu::processor_name(),
                     cpu::isa_name(isa_),
                     pool_->n_threads(),
                     pool_->n_threads() == 1 ? "" : "s",
                     dtype_name(compute_dtype_));
}

Tensor CpuDevice::allocate(DType dtype, Shape shape) { return {dtype, shape}; }

WeightMatrix CpuDevice::allocate_weight(int64_t n_rows, int64_t n_cols, DType dtype) {
  return {n_rows, n_cols, dtype, std::make_shared<PackedStorage>(n_rows, n_cols, dtype)};
}

void CpuDevice::store_rows(const WeightMatrix& weight, int64_t first_row, TensorView rows) {
  packed(weight).store_rows(first_row, rows);
}

void CpuDevice::do_embed(std::span<const int32_t> ids,
                         const WeightMatrix& table,
                         int64_t first_id,
                         TensorView out) {
  const int64_t d = table.n_cols();
  pool_->parallel_for(out.n_rows(), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(d));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t local = ids[static_cast<size_t>(i)] - first_id;
      if (local >= 0 && local < table.n_rows()) {
        packed(table).load_row(local, row.data());
      } else {
        std::fill(row.begin(), row.end(), 0.0F);
      }
      if (out.dtype() == DType::F32) {
        std::copy(row.begin(), row.end(), out.as<float>() + i * d);
      } else {
        std::transform(row.begin(), row.end(), out.as<bf16>() + i * d, to_bf16);
      }
    }
  });
}

void CpuDevice::do_rms_norm(TensorView x, TensorView weight, float eps, TensorView out) {
  cpu::rms_norm(x, weight, eps, out, *pool_, isa_);
}

void CpuDevice::do_add_rms_norm(
    TensorView residual, TensorView x, TensorView weight, float eps, TensorView out) {
  cpu::add_rms_norm(residual, x, weight, eps, out, *pool_, isa_);
}

void CpuDevice::do_add(TensorView residual, TensorView x) { cpu::add(residual, x, *pool_, isa_); }

void CpuDevice::do_head_norm(TensorView x, TensorView weight, float eps) {
  const TensorView heads = x.reshaped({x.shape()[0] * x.shape()[1], x.shape()[2]});
  cpu::rms_norm(heads, weight, eps, heads, *pool_, isa_);
}

void CpuDevice::do_linear(TensorView x, const WeightMatrix& weight, TensorView bias, TensorView y) {
  const float* bias_data = bias.empty() ? nullptr : bias.as<float>();
  const TensorView rows = x.reshaped({x.n_rows(), weight.n_cols()});
  const TensorView out = y.reshaped({y.n_rows(), weight.n_rows()});
  if (rows.dtype() == DType::BF16 && weight.dtype() != DType::BF16) {
    // bf16 activations on f32 or f16 weights: the arithmetic is f32.
    const Tensor wide(DType::F32, rows.shape());
    cpu::convert(rows, wide, *pool_, isa_);
    cpu::linear(packed(weight), wide, bias_data, out, *pool_, isa_);
    return;
  }
  cpu::linear(packed(weight), rows, bias_data, out, *pool_, isa_);
}

void CpuDevice::do_rope(TensorView x,
                        std::span<const int64_t> positions,
                        const RopeFrequencies& frequencies) {
  cpu::rope(x, positions, frequencies.inv_freq, frequencies.multiplier, *pool_, isa_);
}

void CpuDevice::do_write_kv(TensorView k,
                            TensorView v,
                            const KvView& kv,
                            std::span<const int64_t> slots) {
  cpu::write_kv(k, v, kv, slots, *pool_);
}

void CpuDevice::do_attention(TensorView q,
                             const KvView& kv,
                             const AttentionParams& params,
                             TensorView out) {
  cpu::paged_attention({.q = q,
                        .kv = kv,
                        .sequences = params.sequences,
                        .window = params.window,
                        .scale = params.scale,
                        .head_to_kv = params.head_to_kv,
                        .out = out},
                       *pool_,
                       isa_);
}

void CpuDevice::do_swiglu(TensorView gate_up, TensorView out) {
  cpu::swiglu(gate_up, out, *pool_, isa_);
}

void CpuDevice::do_gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const TensorView from = x.rows(rows[i], 1);
    const TensorView to = out.rows(static_cast<int64_t>(i), 1);
    std::memcpy(to.data(), from.data(), static_cast<size_t>(from.n_bytes()));
  }
}

void CpuDevice::do_row_max(TensorView logits, std::span<RowMax> out) {
  cpu::row_max(logits, out, *pool_, isa_);
}

}  // namespace testbed
