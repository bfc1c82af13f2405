// CpuDevice: one MPI rank with its threads. Weights are repacked once into the layout that serves
// decode and prefill (PackedMatrix); ops are the kernels of this folder, in the best instruction
// set the processor has.
#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/elementwise.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/thread_pool.hpp"
#include "kernels/device.hpp"

namespace testbed {

class CpuDevice final : public Device {
 public:
  // The pool may be shared by several devices of one rank (a check computes in two dtypes).
  CpuDevice(std::shared_ptr<cpu::ThreadPool> pool, cpu::Isa isa, DType compute_dtype);

  std::string_view kind() const override { return "cpu"; }
  std::string description() const override;
  DType compute_dtype() const override { return compute_dtype_; }
  Tensor allocate(DType dtype, Shape shape) override;
  WeightMatrix allocate_weight(int64_t n_rows, int64_t n_cols, const WeightFormat& format) override;
  void store_rows(const WeightMatrix& weight, int64_t first_row, TensorView rows) override;
  void store_rows(const WeightMatrix& weight,
                  int64_t first_row,
                  const QuantisedRows& rows) override;
  void on_host_threads(int64_t n,
                       int64_t granule,
                       const std::function<void(int64_t, int64_t)>& work) override;
  void upload(TensorView host, TensorView device) override;
  void download(TensorView device, TensorView host) override;
  void fill_synthetic(TensorView x) override;

 private:
  void do_embed(std::span<const int32_t> ids,
                const WeightMatrix& table,
                int64_t first_id,
                TensorView out) override;
  void do_rms_norm(TensorView x, TensorView weight, float eps, TensorView out) override;
  void do_add_rms_norm(
      TensorView residual, TensorView x, TensorView weight, float eps, TensorView out) override;
  void do_add(TensorView residual, TensorView x) override;
  void do_head_norm(TensorView x, TensorView weight, float eps) override;
  void do_linear(TensorView x, const WeightMatrix& weight, TensorView bias, TensorView y) override;
  bool groups_products() const override { return true; }
  void do_linear_group(TensorView x, std::span<const LinearOperands> products) override;
  bool gates_products(const WeightMatrix& weight) const override;
  void do_linear_gated(TensorView x,
                       const WeightMatrix& weight,
                       TensorView bias,
                       Activation activation,
                       TensorView gate_up,
                       TensorView out) override;
  void do_rope(TensorView x,
               std::span<const int64_t> positions,
               const RopeFrequencies& frequencies) override;
  void do_write_kv(TensorView k,
                   TensorView v,
                   const KvView& kv,
                   std::span<const int64_t> slots) override;
  void do_gather_blocks(const KvView& from,
                        std::span<const int32_t> blocks,
                        const KvView& to) override;
  void do_attention(TensorView q,
                    const KvView& kv,
                    const AttentionParams& params,
                    TensorView out,
                    TensorView lse) override;
  void do_merge_attention(TensorView total,
                          TensorView total_lse,
                          TensorView part,
                          TensorView part_lse) override;
  void do_finish_attention(TensorView total,
                           TensorView total_lse,
                           TensorView sinks,
                           TensorView out) override;
  void do_gated_activation(Activation activation, TensorView gate_up, TensorView out) override;
  void do_gated_activation(Activation activation,
                           TensorView gate,
                           TensorView up,
                           TensorView out) override;
  void do_scale(TensorView x, float factor) override;
  void do_softcap(TensorView x, float cap) override;
  void do_gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out) override;
  void do_copy_columns(
      TensorView x, int64_t x_column, int64_t n, TensorView out, int64_t out_column) override;
  void do_head_linear(TensorView x, std::span<const WeightMatrix> weights, TensorView y) override;
  void do_route(TensorView logits,
                const RoutingParams& params,
                TensorView ids,
                TensorView weights) override;
  void do_expert_linear(TensorView x,
                        const ExpertRows& experts,
                        std::span<const WeightMatrix> weights,
                        TensorView biases,
                        TensorView y) override;
  void do_combine_rows(TensorView x, const WeightedRows& sums, TensorView out) override;
  bool do_all_finite(TensorView x) override;
  void do_row_max(TensorView logits, std::span<RowMax> out) override;

  std::shared_ptr<cpu::ThreadPool> pool_;
  cpu::Isa isa_;
  DType compute_dtype_;
  cpu::RotationTables rotations_;
};

}  // namespace testbed
