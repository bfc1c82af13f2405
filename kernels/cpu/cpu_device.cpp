#include "kernels/cpu/cpu_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/base/huge_pages.hpp"
#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/packed_matrix.hpp"
#include "kernels/cpu/processor.hpp"
#include "kernels/cpu/routing.hpp"
#include "kernels/cpu/rows.hpp"

namespace testbed {
namespace {

class PackedStorage final : public WeightMatrix::Storage {
 public:
  PackedStorage(int64_t n_rows, int64_t n_cols, const WeightFormat& format)
      : matrix(n_rows, n_cols, format) {}
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

// What reaches over many pages is the cache, or buffers that live as long. Its pages are taken now,
// not in a timed step.
Tensor CpuDevice::allocate(DType dtype, Shape shape) {
  constexpr int64_t many_pages = int64_t{64} << 10;
  if (dtype_bytes(dtype, shape.n_elements()) < many_pages) return {dtype, shape};
  Tensor tensor = in_huge_pages(dtype, shape);
  std::memset(tensor.data(), 0, static_cast<size_t>(tensor.n_bytes()));
  return tensor;
}

WeightMatrix CpuDevice::allocate_weight(int64_t n_rows,
                                        int64_t n_cols,
                                        const WeightFormat& format) {
  return {n_rows, n_cols, format, std::make_shared<PackedStorage>(n_rows, n_cols, format)};
}

void CpuDevice::store_rows(const WeightMatrix& weight, int64_t first_row, TensorView rows) {
  packed(weight).store_rows(first_row, rows);
}

void CpuDevice::store_rows(const WeightMatrix& weight,
                           int64_t first_row,
                           const QuantisedRows& rows) {
  packed(weight).store_rows(first_row, rows);
}

void CpuDevice::on_host_threads(int64_t n,
                                int64_t granule,
                                const std::function<void(int64_t, int64_t)>& work) {
  pool_->parallel_for(n, granule, work);
}

void CpuDevice::upload(TensorView host, TensorView device) {
  CHECK(host.n_bytes() == device.n_bytes());
  if (host.n_bytes() > 0) {
    std::memcpy(device.data(), host.data(), static_cast<size_t>(host.n_bytes()));
  }
}

void CpuDevice::download(TensorView device, TensorView host) { upload(device, host); }

void CpuDevice::fill_synthetic(TensorView x) {
  for (int64_t i = 0; i < x.n_elements(); ++i) {
    const float value = 0.01F * static_cast<float>(i % 17 - 8);
    if (x.dtype() == DType::F32) {
      x.as<float>()[i] = value;
    } else {
      x.as<bf16>()[i] = to_bf16(value);
    }
  }
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
  if (!weight.empty()) {
    cpu::rms_norm(heads, weight, eps, heads, *pool_, isa_);
    return;
  }
  const Tensor ones(DType::F32, {x.shape()[2]});
  std::fill_n(ones.as<float>(), ones.n_elements(), 1.0F);
  cpu::rms_norm(heads, ones, eps, heads, *pool_, isa_);
}

void CpuDevice::do_linear(TensorView x, const WeightMatrix& weight, TensorView bias, TensorView y) {
  cpu::linear(packed(weight),
              x.reshaped({x.n_rows(), weight.n_cols()}),
              bias.empty() ? nullptr : bias.as<float>(),
              y.reshaped({y.n_rows(), weight.n_rows()}),
              *pool_,
              isa_);
}

void CpuDevice::do_linear_group(TensorView x, std::span<const LinearOperands> products) {
  std::vector<cpu::LinearJob> jobs;
  jobs.reserve(products.size());
  for (const LinearOperands& p : products) {
    jobs.push_back({&packed(*p.weight),
                    p.bias.empty() ? nullptr : p.bias.as<float>(),
                    p.y.reshaped({p.y.n_rows(), p.weight->n_rows()})});
  }
  cpu::linear(jobs, x.reshaped({x.n_rows(), products.front().weight->n_cols()}), *pool_, isa_);
}

bool CpuDevice::gates_products(const WeightMatrix& weight) const {
  return cpu::can_gate(packed(weight));
}

void CpuDevice::do_linear_gated(TensorView x,
                                const WeightMatrix& weight,
                                TensorView bias,
                                Activation activation,
                                TensorView gate_up,
                                TensorView out) {
  const cpu::LinearJob job{&packed(weight),
                           bias.empty() ? nullptr : bias.as<float>(),
                           gate_up.reshaped({gate_up.n_rows(), weight.n_rows()})};
  cpu::linear_gated(job, x.reshaped({x.n_rows(), weight.n_cols()}), activation, out, *pool_, isa_);
}

void CpuDevice::do_rope(TensorView x,
                        std::span<const int64_t> positions,
                        const RopeFrequencies& frequencies) {
  cpu::rope(x, positions, frequencies, rotations_, *pool_, isa_);
}

void CpuDevice::do_write_kv(TensorView k,
                            TensorView v,
                            const KvView& kv,
                            std::span<const int64_t> slots) {
  cpu::write_kv(k, v, kv, slots, *pool_);
}

void CpuDevice::do_gather_blocks(const KvView& from,
                                 std::span<const int32_t> blocks,
                                 const KvView& to) {
  cpu::gather_blocks(from, blocks, to, *pool_);
}

void CpuDevice::do_attention(
    TensorView q, const KvView& kv, const AttentionParams& params, TensorView out, TensorView lse) {
  cpu::paged_attention({.q = q,
                        .kv = kv,
                        .sequences = params.sequences,
                        .window = params.window,
                        .scale = params.scale,
                        .softcap = params.softcap,
                        .head_to_kv = params.head_to_kv,
                        .sinks = params.sinks,
                        .out = out,
                        .lse = lse},
                       *pool_,
                       isa_);
}

void CpuDevice::do_merge_attention(TensorView total,
                                   TensorView total_lse,
                                   TensorView part,
                                   TensorView part_lse) {
  cpu::merge_attention(total, total_lse, part, part_lse, *pool_);
}

void CpuDevice::do_finish_attention(TensorView total,
                                    TensorView total_lse,
                                    TensorView sinks,
                                    TensorView out) {
  cpu::finish_attention(total, total_lse, sinks, out, *pool_);
}

void CpuDevice::do_gated_activation(Activation activation, TensorView gate_up, TensorView out) {
  cpu::gated_activation(activation, gate_up, out, *pool_, isa_);
}

void CpuDevice::do_gated_activation(Activation activation,
                                    TensorView gate,
                                    TensorView up,
                                    TensorView out) {
  cpu::gated_activation(activation, gate, up, out, *pool_, isa_);
}

void CpuDevice::do_scale(TensorView x, float factor) { cpu::scale(x, factor, *pool_, isa_); }

void CpuDevice::do_softcap(TensorView x, float cap) { cpu::softcap(x, cap, *pool_, isa_); }

void CpuDevice::do_gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out) {
  cpu::gather_rows(x, rows, out, *pool_);
}

void CpuDevice::do_copy_columns(
    TensorView x, int64_t x_column, int64_t n, TensorView out, int64_t out_column) {
  cpu::copy_columns(x, x_column, n, out, out_column, *pool_);
}

// A thread per head: their matrices are small. Contiguous copies make it the product of do_linear.
void CpuDevice::do_head_linear(TensorView x, std::span<const WeightMatrix> weights, TensorView y) {
  const int64_t m = x.shape()[0];
  const int64_t n_heads = x.shape()[1];
  const int64_t k = x.shape()[2];
  const int64_t n = y.shape()[2];
  pool_->parallel_for(n_heads, 1, [&](int64_t begin, int64_t end) {
    cpu::ThreadPool alone(1, false);
    const Tensor x_head(x.dtype(), {m, k});
    const Tensor y_head(y.dtype(), {m, n});
    for (int64_t h = begin; h < end; ++h) {
      cpu::copy_columns(x.reshaped({m, n_heads * k}), h * k, k, x_head, 0, alone);
      cpu::linear(packed(weights[static_cast<size_t>(h)]), x_head, nullptr, y_head, alone, isa_);
      cpu::copy_columns(y_head, 0, n, y.reshaped({m, n_heads * n}), h * n, alone);
    }
  });
}

void CpuDevice::do_route(TensorView logits,
                         const RoutingParams& params,
                         TensorView ids,
                         TensorView weights) {
  cpu::route(logits, params, ids, weights, *pool_);
}

void CpuDevice::do_expert_linear(TensorView x,
                                 const ExpertRows& experts,
                                 std::span<const WeightMatrix> weights,
                                 TensorView biases,
                                 TensorView y) {
  for (int64_t e = 0; e < experts.n_experts(); ++e) {
    const int64_t n_rows = experts.n_rows(e);
    if (n_rows == 0) continue;
    const WeightMatrix& weight = weights[static_cast<size_t>(e)];
    const int64_t first = experts.first_row[static_cast<size_t>(e)];
    cpu::linear(packed(weight),
                x.rows(first, n_rows).reshaped({n_rows, weight.n_cols()}),
                biases.empty() ? nullptr : biases.as<float>() + e * weight.n_rows(),
                y.rows(first, n_rows).reshaped({n_rows, weight.n_rows()}),
                *pool_,
                isa_);
  }
}

void CpuDevice::do_combine_rows(TensorView x, const WeightedRows& sums, TensorView out) {
  cpu::combine_rows(x, sums, out, *pool_, isa_);
}

bool CpuDevice::do_all_finite(TensorView x) { return cpu::all_finite(x, *pool_, isa_); }

void CpuDevice::do_row_max(TensorView logits, std::span<RowMax> out) {
  cpu::row_max(logits, out, *pool_, isa_);
}

}  // namespace testbed
