// Device: memory and every op a device can do, with shapes: the one list. Public ops are
// non-virtual: each computes its OpCost (kernels/cost.hpp), runs the backend's private virtual, and
// tells the CostSink. So counting happens once, for every backend. An op without rows is no op:
// nothing runs and nothing is counted. Activations and the KV cache are in the compute dtype (F32
// or BF16); sums are in f32.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/attention_cost.hpp"
#include "kernels/base/clock.hpp"
#include "kernels/base/kv.hpp"
#include "kernels/base/op_cost.hpp"
#include "kernels/base/routing.hpp"
#include "kernels/base/row_max.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/base/weight_format.hpp"
#include "kernels/cost.hpp"
#include "kernels/quantise.hpp"

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
  WeightMatrix(int64_t n_rows,
               int64_t n_cols,
               const WeightFormat& format,
               std::shared_ptr<Storage> storage)
      : n_rows_(n_rows),
        n_cols_(n_cols),
        model_rows_(n_rows),
        format_(format),
        storage_(std::move(storage)) {}
  int64_t n_rows() const { return n_rows_; }
  int64_t n_cols() const { return n_cols_; }
  const WeightFormat& format() const { return format_; }
  // Of plain elements.
  DType dtype() const {
    CHECK(!format_.is_quantised());
    return format_.dtype;
  }
  int64_t n_bytes() const { return format_.n_bytes(n_rows_, n_cols_); }
  Storage& storage() const { return *storage_; }
  // Rows that count for MFU: fewer than n_rows where this rank holds replicas of another rank's KV
  // heads.
  int64_t model_rows() const { return model_rows_; }
  void set_model_rows(int64_t rows) { model_rows_ = rows; }

 private:
  int64_t n_rows_ = 0;
  int64_t n_cols_ = 0;
  int64_t model_rows_ = 0;
  WeightFormat format_;
  std::shared_ptr<Storage> storage_;
};

// One product of Device::linear_group.
struct LinearOperands {
  const WeightMatrix* weight = nullptr;  // [n, k]
  TensorView bias;                       // F32 [n] or empty
  TensorView y;                          // [m, n]
};

// Rotary frequencies; cos and sin are multiplied by `multiplier` (YaRN).
struct RopeFrequencies {
  std::span<const double> inv_freq;  // [head_dim / 2]
  double multiplier = 1.0;
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + head_dim / 2)
};

struct AttentionParams {
  std::span<const AttentionSequence> sequences;
  // Not 0: within a section, calls of equal id have the same sequences, which a device then
  // prepares once.
  int64_t id = 0;
  int64_t window = 0;                   // visible tokens including the query's own; 0 = all
  float scale = 1.0F;                   // of q.k
  float softcap = 0.0F;                 // scores become softcap * tanh(score / softcap); 0 = none
  std::span<const int32_t> head_to_kv;  // [n_heads_local] -> local KV head
  TensorView sinks;  // F32 [n_heads_local] or empty: a score that takes weight and gives no value
  // Products per head and visible pair that count for MFU, where more are executed (MLA's absorbed
  // form); 0: head_dim + v_dim.
  int64_t model_dim = 0;
};

// Rows of x sorted by expert: rows [first_row[e], first_row[e + 1]) are expert e's.
struct ExpertRows {
  std::span<const int64_t> first_row;  // [n_experts_local + 1]
  int64_t n_experts() const { return static_cast<int64_t>(first_row.size()) - 1; }
  int64_t n_rows(int64_t e) const {
    return first_row[static_cast<size_t>(e + 1)] - first_row[static_cast<size_t>(e)];
  }
};

// out row t is the sum of weights[i] * x[rows[i], :] for i in [first[t], first[t + 1]), in order.
struct WeightedRows {
  std::span<const int64_t> first;  // [n_out + 1]
  std::span<const int64_t> rows;
  std::span<const float> weights;
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
  // What its ops, and whoever works with it, are stamped by. On a device that works behind the
  // host's back a stamp is a ticket: settle_stamps() waits for the device, and stamp_ns() then
  // gives the time by host_clock(), for plain times too.
  const Clock& clock() const { return clock_; }
  virtual const Clock& host_clock() const { return clock_; }
  virtual void settle_stamps() {}
  virtual int64_t stamp_ns(int64_t stamp) const { return stamp; }
  virtual int64_t stamp_error_ns() const { return 0; }  // bound, so far

  // Tensors that live on the device.
  virtual Tensor allocate(DType dtype, Shape shape) = 0;
  // An empty matrix, then filled by blocks of rows [first_row, ...) from host memory, so that
  // loading never holds a whole row-major copy. rows: [n, n_cols] in the matrix's dtype; of a
  // quantised matrix in its format.
  virtual WeightMatrix allocate_weight(int64_t n_rows,
                                       int64_t n_cols,
                                       const WeightFormat& format) = 0;
  virtual void store_rows(const WeightMatrix& weight, int64_t first_row, TensorView rows) = 0;
  virtual void store_rows(const WeightMatrix& weight,
                          int64_t first_row,
                          const QuantisedRows& rows) = 0;
  // work(begin, end) over [0, n), cut at multiples of granule, by the threads that a device lends
  // the host while it is idle; here the caller alone. Rows of different panels of 16 may be stored
  // from them.
  virtual void on_host_threads(int64_t n,
                               int64_t /*granule*/,
                               const std::function<void(int64_t, int64_t)>& work) {
    if (n > 0) work(0, n);
  }
  // Copies between host tensors and this device's, behind the ops so far; done on return. A device
  // that holds no data copies nothing.
  virtual void upload(TensorView host, TensorView device) = 0;
  virtual void download(TensorView device, TensorView host) = 0;
  // x[i] = 0.01 (i % 17 - 8): what stands for a cache that nothing was computed into.
  virtual void fill_synthetic(TensorView x) = 0;
  // Waits until all ops so far are done.
  virtual void synchronize() {}
  // Whether sections are captured.
  virtual bool captures() const { return false; }
  // How it went about its work, for the record.
  virtual std::map<std::string, std::string> facts() const { return {}; }
  // A piece of a step: work() calls ops and communicators of this device, and nothing in it waits
  // for the device if key != 0. A device may then capture it as a graph, and replay that for pieces
  // of equal key: equally shaped work. before_capture is called on every rank that captures.
  virtual void section(uint64_t /*key*/,
                       const std::function<void()>& work,
                       const std::function<void()>& /*before_capture*/) {
    work();
  }
  // What a profiler shows of the host's work (kernels/named_range.hpp).
  virtual void begin_range(std::string_view /*name*/, int64_t /*index*/) {}
  virtual void end_range() {}

  void set_sink(CostSink* sink) { sink_ = sink; }
  // Test aid (--inject slow-device): ops take so many times as long; the host sleeps after them.
  void set_slowdown(double factor) { slowdown_ = factor; }

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
  // The same, done within another call (Communicator::all_reduce_add_norm): its cost is counted
  // here, its time there.
  void count_add_rms_norm(TensorView residual);
  // residual += x.
  void add(TensorView residual, TensorView x);
  // rms_norm over each head, in place. x [m, heads, head_dim]; weight F32 [head_dim] or empty
  // (ones).
  void head_norm(TensorView x, TensorView weight, float eps);
  // y[m, n] = x[m, k] W[n, k]^T + bias. y in F32 (the logits) or the compute dtype; bias F32 [n] or
  // empty.
  // n_model_rows: rows of x that count for MFU, if not all do.
  void linear(TensorView x,
              const WeightMatrix& weight,
              TensorView bias,
              TensorView y,
              std::optional<int64_t> n_model_rows = std::nullopt);
  // y_i = x W_i^T + bias_i for several matrices that see the same x. One op on a device that does
  // them in one go, else one each; the costs are those of linear() either way.
  void linear_group(TensorView x, std::span<const LinearOperands> products);
  // gate_up [m, 2f] = x W^T + bias, out [m, f] = activation(gate, up). One op on a device that does
  // them in one go, else linear() and gated_activation(); costs and results are those of the two
  // either way, and a single op's time is the linear's.
  void linear_gated(TensorView x,
                    const WeightMatrix& weight,
                    TensorView bias,
                    Activation activation,
                    TensorView gate_up,
                    TensorView out);
  // Rotates pairs, in place. x [m, heads, head_dim]; positions [m].
  void rope(TensorView x, std::span<const int64_t> positions, const RopeFrequencies& frequencies);
  // Stores k [m, n_kv_heads, head_dim] and v [m, n_kv_heads, v_dim] (empty if kv has no v) at
  // slots[i] = block * block_size + offset; -1: the token is kept by another rank.
  void write_kv(TensorView k, TensorView v, const KvView& kv, std::span<const int64_t> slots);
  // Blocks [block ids of from] to blocks 0, 1, ... of to.
  void gather_blocks(const KvView& from, std::span<const int32_t> blocks, const KvView& to);
  // Causal attention over cached blocks with an online softmax. q [m, n_heads, head_dim], out [m,
  // n_heads, v_dim]. With lse F32 [m, n_heads] the result is partial: out is F32, and rows without
  // a visible key get 0 and -inf; sinks wait for finish_attention.
  void attention(TensorView q,
                 const KvView& kv,
                 const AttentionParams& params,
                 TensorView out,
                 TensorView lse = {});
  // Merges a partial result into total, by log-sum-exp. F32: out [m, n_heads, v_dim], lse [m,
  // n_heads].
  void merge_attention(TensorView total,
                       TensorView total_lse,
                       TensorView part,
                       TensorView part_lse);
  // out = total in out's dtype; sinks F32 [n_heads] or empty take their share.
  void finish_attention(TensorView total, TensorView total_lse, TensorView sinks, TensorView out);
  // out[m, f] = activation(gate, up), gate_up [m, 2f] = gate | up.
  void gated_activation(Activation activation, TensorView gate_up, TensorView out);
  // The same from two tensors [m, f].
  void gated_activation(Activation activation, TensorView gate, TensorView up, TensorView out);
  // x *= factor.
  void scale(TensorView x, float factor);
  // x = cap * tanh(x / cap). x F32 (logits).
  void softcap(TensorView x, float cap);
  // out[i, :] = x[rows[i], :]; a row -1 gives zeros.
  void gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out);
  // out[i, out_column + j] = x[i / repeat, x_column + j] for j < n; repeat = rows of out / rows of
  // x. Both seen as [rows, last dimension].
  void copy_columns(TensorView x, int64_t x_column, int64_t n, TensorView out, int64_t out_column);
  // y[:, h, :] = x[:, h, :] weights[h]^T. x [m, heads, k], y [m, heads, n].
  void head_linear(TensorView x, std::span<const WeightMatrix> weights, TensorView y);
  // Experts of each row by the router's logits F32 [m, n_experts]: ids I32 [m, top_k] sorted by
  // weight, descending; weights F32 [m, top_k]. Ids and weights are host tensors on every device
  // (the host plans the exchange by them). Without data: top_k experts drawn by the row's key,
  // uniformly and in any group, with equal weights.
  void route(TensorView logits, const RoutingParams& params, TensorView ids, TensorView weights);
  // Of each expert's rows: y = x weights[e]^T + biases[e]. Only experts with rows are read. x
  // [n_rows, k], y [n_rows, n]; biases F32 [n_experts_local, n] or empty. n_model_rows: those that
  // count for MFU.
  void expert_linear(TensorView x,
                     const ExpertRows& experts,
                     std::span<const WeightMatrix> weights,
                     TensorView biases,
                     TensorView y,
                     int64_t n_model_rows);
  // Sums in f32, one rounding. x [n_rows, d], out [n_out, d].
  void combine_rows(TensorView x, const WeightedRows& sums, TensorView out);
  // Of each row of logits F32 [r, n].
  void row_max(TensorView logits, std::span<RowMax> out);
  // Whether every element is finite. Not an op of the model: counted as a copy.
  bool all_finite(TensorView x);

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
  // Whether linear_group is an op of its own here; else its parts are.
  virtual bool groups_products() const { return false; }
  virtual void do_linear_group(TensorView x, std::span<const LinearOperands> products);
  // The same of linear_gated, with such a matrix.
  virtual bool gates_products(const WeightMatrix& /*weight*/) const { return false; }
  virtual void do_linear_gated(TensorView x,
                               const WeightMatrix& weight,
                               TensorView bias,
                               Activation activation,
                               TensorView gate_up,
                               TensorView out);
  virtual void do_rope(TensorView x,
                       std::span<const int64_t> positions,
                       const RopeFrequencies& frequencies) = 0;
  virtual void do_write_kv(TensorView k,
                           TensorView v,
                           const KvView& kv,
                           std::span<const int64_t> slots) = 0;
  virtual void do_gather_blocks(const KvView& from,
                                std::span<const int32_t> blocks,
                                const KvView& to) = 0;
  virtual void do_attention(TensorView q,
                            const KvView& kv,
                            const AttentionParams& params,
                            TensorView out,
                            TensorView lse) = 0;
  virtual void do_merge_attention(TensorView total,
                                  TensorView total_lse,
                                  TensorView part,
                                  TensorView part_lse) = 0;
  virtual void do_finish_attention(TensorView total,
                                   TensorView total_lse,
                                   TensorView sinks,
                                   TensorView out) = 0;
  virtual void do_gated_activation(Activation activation, TensorView gate_up, TensorView out) = 0;
  virtual void do_gated_activation(Activation activation,
                                   TensorView gate,
                                   TensorView up,
                                   TensorView out) = 0;
  virtual void do_scale(TensorView x, float factor) = 0;
  virtual void do_softcap(TensorView x, float cap) = 0;
  virtual void do_gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out) = 0;
  virtual void do_copy_columns(
      TensorView x, int64_t x_column, int64_t n, TensorView out, int64_t out_column) = 0;
  virtual void do_head_linear(TensorView x,
                              std::span<const WeightMatrix> weights,
                              TensorView y) = 0;
  virtual void do_route(TensorView logits,
                        const RoutingParams& params,
                        TensorView ids,
                        TensorView weights) = 0;
  virtual void do_expert_linear(TensorView x,
                                const ExpertRows& experts,
                                std::span<const WeightMatrix> weights,
                                TensorView biases,
                                TensorView y) = 0;
  virtual void do_combine_rows(TensorView x, const WeightedRows& sums, TensorView out) = 0;
  virtual bool do_all_finite(TensorView x) = 0;
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
    int64_t n_rows;  // 0: no op
    DType operands;
    OpShape shape = {};
  };
  template <typename Cost, typename Run>
  void counted(const Op& op, Cost&& cost, Run&& run);
  template <typename Run>
  void slowly(Run&& run);

  const Clock& clock_;
  CostSink* sink_ = nullptr;
  double slowdown_ = 1.0;
  int64_t owed_ns_ = 0;  // what it has yet to sleep: short sleeps take too long
};

}  // namespace testbed
