// CudaDevice: one GPU. Ops are calls on its Queue, in order on the compute stream; plain weights
// are row-major, quantised ones as quantised.hpp says. With F32 activations their products are of
// dequantise()'s values; with BF16 of exact values up to 64 rows, above of values rounded to bf16.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/gemm.hpp"
#include "kernels/cuda/profiler.hpp"
#include "kernels/cuda/queue.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/stream_clock.hpp"
#include "kernels/device.hpp"

namespace testbed {

// The streams of this process's GPU, shared by its devices (the checks make one of another dtype)
// and communicators. Made once the GPU is chosen (cudaSetDevice).
struct CudaStreams {
  cuda::Queue queue;
  cuda::StreamClock clock{queue};
};

class CudaDevice final : public Device {
 public:
  enum class Graphs : uint8_t { capture, never };
  CudaDevice(std::shared_ptr<CudaStreams> streams,
             DType compute_dtype,
             std::string description,
             Graphs graphs = Graphs::capture);

  std::string_view kind() const override { return "cuda"; }
  std::string description() const override { return description_; }
  DType compute_dtype() const override { return compute_dtype_; }
  const Clock& host_clock() const override { return steady_clock(); }
  Tensor allocate(DType dtype, Shape shape) override;
  WeightMatrix allocate_weight(int64_t n_rows, int64_t n_cols, const WeightFormat& format) override;
  void store_rows(const WeightMatrix& weight, int64_t first_row, TensorView rows) override;
  void store_rows(const WeightMatrix& weight,
                  int64_t first_row,
                  const QuantisedRows& rows) override;
  void upload(TensorView host, TensorView device) override;
  void download(TensorView device, TensorView host) override;
  void fill_synthetic(TensorView x) override;
  void synchronize() override;
  bool captures() const override { return graphs_ == Graphs::capture; }
  std::map<std::string, std::string> facts() const override;
  void section(uint64_t key,
               const std::function<void()>& work,
               const std::function<void()>& before_capture) override;
  void begin_range(std::string_view name, int64_t index) override { profiler_.begin(name, index); }
  void end_range() override { profiler_.end(); }
  void settle_stamps() override;
  int64_t stamp_ns(int64_t stamp) const override;
  int64_t stamp_error_ns() const override { return streams_->clock.error_ns(); }

  cuda::Queue& queue() { return streams_->queue; }

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

  // x in the dtype of weights that are wider (a router's in f32).
  TensorView widened(TensorView x, DType weight);
  // The weights' addresses, for the grouped kernels.
  const void* const* addresses(std::span<const WeightMatrix> weights);
  static TensorView values(const WeightMatrix& weight);  // [n_rows, n_cols] of plain elements
  void quantised_linear(TensorView x, const WeightMatrix& weight, TensorView bias, TensorView y);
  // Device memory that ops use between their kernels; grows by reallocation.
  TensorView scratch(Tensor& held, DType dtype, Shape shape);

  std::shared_ptr<CudaStreams> streams_;
  cuda::Queue& queue_;
  DType compute_dtype_;
  std::string description_;
  Graphs graphs_;
  cuda::Profiler profiler_;
  cuda::Gemm gemm_;
  cuda::Attention attention_;
  Tensor staging_;  // pinned, for uploads and downloads
  // Of quantised matrices: rows on their way to the device, rows expanded for a product. Made with
  // the first such matrix, of fixed size.
  Tensor expanded_;
  Tensor wide_;
  Tensor wide_out_;
  Tensor results_;
};

}  // namespace testbed
