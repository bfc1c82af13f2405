// Linear layers sharded over tp. None communicates: ResidualStream reduces their partial sums.
#pragma once

#include <span>

#include "kernels/device.hpp"

namespace testbed {

// Rows (outputs) of W are split: y_local[m, n_local] = x[m, k] W_local^T + bias_local. No
// communication.
class ColumnParallelLinear {
 public:
  ColumnParallelLinear() = default;
  ColumnParallelLinear(WeightMatrix weight, Tensor bias)
      : weight_(std::move(weight)), bias_(std::move(bias)) {}
  int64_t n_local() const { return weight_.n_rows(); }
  // Another rank holds the same rows and counts them as the model's.
  void set_replica() { weight_.set_model_rows(0); }
  void forward(Device& device, TensorView x, TensorView y_local) const {
    device.linear(x, weight_, bias_, y_local);
  }
  // out[m, n_local / 2] = activation(gate, up) too, where y_local is gate | up.
  void forward_gated(Device& device,
                     TensorView x,
                     Activation activation,
                     TensorView y_local,
                     TensorView out) const {
    device.linear_gated(x, weight_, bias_, activation, y_local, out);
  }
  // For Device::linear_group, with others that see the same x.
  LinearOperands operands(TensorView y_local) const { return {&weight_, bias_, y_local}; }

 private:
  WeightMatrix weight_;  // [n_local, k]
  Tensor bias_;          // F32 [n_local] or empty
};

// Columns (inputs) of W are split: partial[m, n] = x_local[m, k_local] W_local^T, to be summed over
// tp by ResidualStream. The bias is held by tp rank 0 alone, so that the sum has it once.
class RowParallelLinear {
 public:
  RowParallelLinear() = default;
  RowParallelLinear(WeightMatrix weight, Tensor bias)
      : weight_(std::move(weight)), bias_(std::move(bias)) {}
  void forward(Device& device, TensorView x_local, TensorView partial) const {
    device.linear(x_local, weight_, bias_, partial);
  }

 private:
  WeightMatrix weight_;  // [n, k_local]
  Tensor bias_;          // F32 [n] on tp rank 0, else empty
};

// The same weights on every rank of tp. Rows that all ranks have count on one of them for MFU.
class ReplicatedLinear {
 public:
  ReplicatedLinear() = default;
  ReplicatedLinear(WeightMatrix weight, Tensor bias)
      : weight_(std::move(weight)), bias_(std::move(bias)) {}
  int64_t n_rows() const { return weight_.n_rows(); }
  void set_replica() { counts_shared_rows_ = false; }
  // own_rows: those of x are this tp rank's alone; else all ranks have the same.
  void forward(Device& device, TensorView x, TensorView y, bool own_rows = false) const {
    device.linear(x, weight_, bias_, y, own_rows || counts_shared_rows_ ? x.n_rows() : 0);
  }

 private:
  WeightMatrix weight_;  // [n, k]
  Tensor bias_;          // F32 [n] or empty
  bool counts_shared_rows_ = true;
};

// The table's rows are split (vocabulary_shard). Partial sum: rows of ids held elsewhere are zero;
// the residual stream starts by reducing it.
class VocabularyParallelEmbedding {
 public:
  VocabularyParallelEmbedding() = default;
  VocabularyParallelEmbedding(WeightMatrix table, int64_t first_id)
      : table_(std::move(table)), first_id_(first_id) {}
  void forward(Device& device, std::span<const int32_t> ids, TensorView partial) const {
    device.embed(ids, table_, first_id_, partial);
  }

 private:
  WeightMatrix table_;  // [vocab_local, d_model]
  int64_t first_id_ = 0;
};

// logits_local[r, vocab_local] = x[r, d_model] W_local^T, F32. No communication; the sampler
// gathers what it needs.
class VocabularyParallelHead {
 public:
  VocabularyParallelHead() = default;
  VocabularyParallelHead(WeightMatrix weight, int64_t first_id)
      : weight_(std::move(weight)), first_id_(first_id) {}
  int64_t n_local() const { return weight_.n_rows(); }
  int64_t first_id() const { return first_id_; }
  // n_model_rows: rows of x that count for MFU; the others count on another rank.
  void forward(Device& device, TensorView x, TensorView logits_local, int64_t n_model_rows) const {
    device.linear(x, weight_, {}, logits_local, n_model_rows);
  }

 private:
  WeightMatrix weight_;  // [vocab_local, d_model]; tied: the embedding's storage
  int64_t first_id_ = 0;
};

}  // namespace testbed
