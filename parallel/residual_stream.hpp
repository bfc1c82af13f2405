// ResidualStream: the one place where a row-parallel partial sum meets the residual: the reduction
// over tp, the addition and the norms. With TpComm::all_reduce every tp rank holds all rows; with
// reduce_scatter (sequence-parallel TP) each holds a slice of them, and the normed rows that the
// next column-parallel layer needs are gathered.
#pragma once

#include <cstdint>

#include "kernels/base/index_range.hpp"
#include "kernels/device.hpp"
#include "kernels/workspace.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/parallel_options.hpp"

namespace testbed {

struct NormWeight {
  Tensor weight;  // F32 [d]
  float eps = 0.0F;
};

// Looks on while a residual stream grows; for checks.
class ResidualObserver {
 public:
  virtual ~ResidualObserver() = default;
  // This rank's part of a sum, [m, d_model], before it is reduced.
  virtual void on_partial(TensorView partial) = 0;
  // The rows held, once a sum is in them, and what followed from them: all rows, normed; the rows
  // held again where no norm follows.
  virtual void on_sum(TensorView held, TensorView normed) = 0;
};

// Rows of a microbatch by tp rank: ceil(m / tp) each, the last ranks fewer or none.
class RowSlices {
 public:
  RowSlices(int64_t n_rows, int tp) : n_rows_(n_rows), tp_(tp), each_((n_rows + tp - 1) / tp) {}
  int64_t each() const { return each_; }
  int64_t padded_rows() const { return each_ * tp_; }
  IndexRange of(int rank) const;

 private:
  int64_t n_rows_;
  int tp_;
  int64_t each_;
};

class ResidualStream {
 public:
  // The rows that this rank holds between blocks, and so passes to the next pipeline stage.
  static int64_t n_held(TpComm comm, const Communicator& tp, int64_t n_rows);
  // Those of the rank that holds most.
  static int64_t most_held(TpComm comm, const Communicator& tp, int64_t n_rows);

  // held: [n_held, d_model] in the compute dtype. Takes its buffers from the workspace.
  ResidualStream(Device& device,
                 Communicator& tp,
                 TpComm comm,
                 Workspace& workspace,
                 TensorView held,
                 int64_t n_rows);

  // nullptr (the default): nobody looks on.
  void set_observer(ResidualObserver* observer) { observer_ = observer; }

  TensorView held() const { return held_; }             // the residual, rows held here
  TensorView normed() const { return normed_; }         // [m, d_model], all rows
  IndexRange held_rows() const;                         // which rows of the microbatch held() is
  bool holds_own_rows() const { return !holds_all(); }  // other tp ranks hold other rows
  // The slice of rows that is this tp rank's part where a group divides its rows' work (experts).
  IndexRange slice() const { return slices_.of(tp_.rank()); }
  // A buffer [m, d_model] for a partial sum, which reduce() may use up.
  TensorView take_partial() const;
  // A buffer [slices.each(), d_model] for this rank's complete slice: complete() brings them
  // together.
  TensorView take_slice() const;

  // The start of the stream: a buffer [m, d_model] for a partial sum (the embedding's), and
  // residual = its sum over tp. One reduction.
  TensorView start_buffer() const;
  void start(TensorView partial);
  // normed = norm(residual): at the start of a pipeline chunk.
  void norm(const NormWeight& next);
  // Sum over tp of partial, the held rows of it. One all-reduce, or one reduce-scatter, of [m,
  // d_model]. partial comes from take_partial().
  TensorView reduce(TensorView partial);
  // The held rows of what the ranks have complete slices of: [slices.each(), d_model] each. One
  // all-gather of [m, d_model]; none with reduce_scatter, whose held rows are the slice.
  TensorView complete(TensorView slice);
  // residual += sum (held rows); normed = next_norm(residual), or left alone when no norm follows
  // in this chunk. With reduce_scatter and a norm: one all-gather of [m, d_model].
  void add_norm(TensorView sum, const NormWeight* next_norm);
  // All of it: the residual's step after attention or an MLP. post_norm: of the sum, before it is
  // added (gemma).
  void reduce_add_norm(TensorView partial,
                       const NormWeight* post_norm,
                       const NormWeight* next_norm);
  // The whole residual [m, d_model] on every rank. With reduce_scatter one all-gather.
  TensorView gathered();

 private:
  bool holds_all() const { return comm_ == TpComm::all_reduce || tp_.size() == 1; }
  TensorView padded(TensorView first_rows) const;
  TensorView sum_of(TensorView partial);
  void gather_normed();
  void show_partial(TensorView partial) const;
  void show_sum(TensorView normed) const;

  Device& device_;
  Communicator& tp_;
  TpComm comm_;
  Workspace& workspace_;
  RowSlices slices_;
  int64_t n_rows_;
  int64_t d_model_;
  TensorView held_;
  TensorView normed_padded_;  // [padded_rows, d_model]
  TensorView normed_;
  ResidualObserver* observer_ = nullptr;
};

}  // namespace testbed
