// Device: memory and every op a device can do, with shapes: the one list. Public ops are
// non-virtual: each computes its OpCost (kernels/cost.hpp), runs the backend's private virtual, and
// tells the CostSink. So counting happens once, for every backend. Activations and the KV cache are
// in the compute dtype (F32 or BF16); sums are in f32.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/clock.hpp"
#include "kernels/base/kv.hpp"
#include "kernels/base/op_cost.hpp"
#include "kernels/base/row_max.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/cost.hpp"

namespace testbed {

// A weight matrix [n_rows, n_cols] (out, in) resident on a device in the backend's own layout.
// Cheap to copy: a tied head and embedding share one storage.
class WeightMatrix {
 public:
  class Storage {
   public:
    virtual ~Storage() = default;
  };
  WeightMatrix() = default;
  WeightMatrix(int64_t n_rows, int64_t n_cols, DType dtype, std::shared_ptr<Storage> storage)
      : n_rows_(n_rows),
        n_cols_(n_cols),
        model_rows_(n_rows),
        dtype_(dtype),
        storage_(std::move(storage)) {}
  int64_t n_rows() const { return n_rows_; }
  int64_t n_cols() const { return n_cols_; }
  DType dtype() const { return dtype_; }
  int64_t n_bytes() const { return dtype_bytes(dtype_, n_rows_ * n_cols_); }
  Storage& storage() const { return *storage_; }
  // Rows that count for MFU: fewer than n_rows where this rank holds replicas of another rank's KV
  // heads.
  int64_t model_rows() const { return model_rows_; }
  void set_model_rows(int64_t rows) { model_rows_ = rows; }

 private:
  int64_t n_rows_ = 0;
  int64_t n_cols_ = 0;
  int64_t model_rows_ = 0;
  DType dtype_ = DType::BF16;
  std::shared_ptr<Storage> storage_;
};

// Rotary frequencies; cos and sin are multiplied by `multiplier` (YaRN).
struct RopeFrequencies {
  std::span<const double> inv_freq;  // [head_dim / 2]
  double multiplier = 1.0;
};

struct AttentionParams {
  std::span<const AttentionSequence> sequences;
  int64_t window = 0;                   // visible tokens including the query's own; 0 = all
  float scale = 1.0F;                   // of q.k
  std::span<const int32_t> head_to_kv;  // [n_heads_local] -> local KV head
};

class Device {
 public:
  virtual ~Device() = default;
  explicit Device(const Clock& clock = steady_clock()) : clock_(clock) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string_view kind() const = 0;    // "cpu"
  virtual std::string description() const = 0;  // processor, ISA, threads, as reported
  virtual DType compute_dtype() const = 0;
  // False for a simulated device: its tensors have shapes and addresses, and no memory behind them.
  virtual bool holds_data() const { return true; }
  // What its ops, and whoever works with it, are stamped by.
  const Clock& clock() const { return clock_; }

  // Tensors that live on the device.
  virtual Tensor allocate(DType dtype, Shape shape) = 0;
  // An empty matrix, then filled by blocks of rows [first_row, ...) from host memory, so that
  // loading never holds a whole row-major copy. rows: [n, n_cols] in the matrix's dtype.
  virtual WeightMatrix allocate_weight(int64_t n_rows, int64_t n_cols, DType dtype) = 0;
  virtual void store_rows(const WeightMatrix& weight, int64_t first_row, TensorView rows) = 0;

  void set_sink(CostSink* sink) { sink_ = sink; }

  // out[i, :] = table[ids[i] - first_id, :] for the ids that this shard of the table holds, else 0.
  void embed(std::span<const int32_t> ids,
             const WeightMatrix& table,
             int64_t first_id,
             TensorView out);
  // out = x / rms(x) * weight, rms over the last dimension. x, out [m, d]; weight F32 [d].
  void rms_norm(TensorView x, TensorView weight, float eps, TensorView out);
  // residual += x; out = rms_norm(residual).
  void add_rms_norm(
      TensorView residual, TensorView x, TensorView weight, float eps, TensorView out);
  // residual += x.
  void add(TensorView residual, TensorView x);
  // rms_norm over each head, in place. x [m, heads, head_dim]; weight F32 [head_dim].
  void head_norm(TensorView x, TensorView weight, float eps);
  // y[m, n] = x[m, k] W[n, k]^T + bias. y in F32 (the logits) or the compute dtype; bias F32 [n] or
  // empty.
  void linear(TensorView x, const WeightMatrix& weight, TensorView bias, TensorView y);
  // Rotates pairs (i, i + head_dim/2), in place. x [m, heads, head_dim]; positions [m].
  void rope(TensorView x, std::span<const int64_t> positions, const RopeFrequencies& frequencies);
  // Stores k, v [m, n_kv_heads, head_dim] at slots[i] = block * block_size + offset.
  void write_kv(TensorView k, TensorView v, const KvView& kv, std::span<const int64_t> slots);
  // Causal attention over the paged cache with an online softmax. q, out [m, n_heads, head_dim].
  void attention(TensorView q, const KvView& kv, const AttentionParams& params, TensorView out);
  // out[m, f] = silu(gate) * up, gate_up [m, 2f] = gate | up.
  void swiglu(TensorView gate_up, TensorView out);
  // out[i, :] = x[rows[i], :].
  void gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out);
  // Of each row of logits F32 [r, n].
  void row_max(TensorView logits, std::span<RowMax> out);

 private:
  virtual void do_embed(std::span<const int32_t> ids,
                        const WeightMatrix& table,
                        int64_t first_id,
                        TensorView out) = 0;
  virtual void do_rms_norm(TensorView x, TensorView weight, float eps, TensorView out) = 0;
  virtual void do_add_rms_norm(
      TensorView residual, TensorView x, TensorView weight, float eps, TensorView out) = 0;
  virtual void do_add(TensorView residual, TensorView x) = 0;
  virtual void do_head_norm(TensorView x, TensorView weight, float eps) = 0;
  virtual void do_linear(TensorView x,
                         const WeightMatrix& weight,
                         TensorView bias,
                         TensorView y) = 0;
  virtual void do_rope(TensorView x,
                       std::span<const int64_t> positions,
                       const RopeFrequencies& frequencies) = 0;
  virtual void do_write_kv(TensorView k,
                           TensorView v,
                           const KvView& kv,
                           std::span<const int64_t> slots) = 0;
  virtual void do_attention(TensorView q,
                            const KvView& kv,
                            const AttentionParams& params,
                            TensorView out) = 0;
  virtual void do_swiglu(TensorView gate_up, TensorView out) = 0;
  virtual void do_gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out) = 0;
  virtual void do_row_max(TensorView logits, std::span<RowMax> out) = 0;

  // A device on virtual time lets an op take its time here. The shape tells what the cost does not;
  // operands are what is multiplied: activations, or the weights of a linear if those are wider.
  virtual bool charges() const { return false; }
  virtual void do_charge(OpKind /*kind*/,
                         const OpCost& /*cost*/,
                         const OpShape& /*shape*/,
                         DType /*operands*/) {}

  struct Op {
    OpKind kind;
    DType operands;
    OpShape shape = {};
  };
  template <typename Cost, typename Run>
  void counted(const Op& op, Cost&& cost, Run&& run);

  const Clock& clock_;
  CostSink* sink_ = nullptr;
};

}  // namespace testbed
