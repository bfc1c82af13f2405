#include "parallel/residual_stream.hpp"

#include <algorithm>

namespace testbed {

IndexRange RowSlices::of(int rank) const {
  return {std::min(n_rows_, each_ * rank), std::min(n_rows_, each_ * (rank + 1))};
}

int64_t ResidualStream::n_held(TpComm comm, const Communicator& tp, int64_t n_rows) {
  return comm == TpComm::all_reduce ? n_rows : RowSlices(n_rows, tp.size()).of(tp.rank()).size();
}

int64_t ResidualStream::most_held(TpComm comm, const Communicator& tp, int64_t n_rows) {
  return comm == TpComm::all_reduce ? n_rows : RowSlices(n_rows, tp.size()).each();
}

ResidualStream::ResidualStream(Device& device,
                               Communicator& tp,
                               TpComm comm,
                               Workspace& workspace,
                               TensorView held,
                               int64_t n_rows)
    : device_(device),
      tp_(tp),
      comm_(comm),
      workspace_(workspace),
      slices_(n_rows, tp.size()),
      n_rows_(n_rows),
      d_model_(held.shape()[1]),
      held_(held),
      normed_padded_(workspace.take(device.compute_dtype(), {slices_.padded_rows(), d_model_})),
      normed_(normed_padded_.rows(0, n_rows)) {
  CHECK(held.n_rows() == n_held(comm, tp, n_rows));
}

IndexRange ResidualStream::held_rows() const {
  return holds_all() ? IndexRange{0, n_rows_} : slice();
}

// The buffer has room for whole slices of all ranks, so that they can be exchanged.
TensorView ResidualStream::take_partial() const {
  return workspace_.take(device_.compute_dtype(), {slices_.padded_rows(), d_model_})
      .rows(0, n_rows_);
}

TensorView ResidualStream::take_slice() const {
  return workspace_.take(device_.compute_dtype(), {slices_.each(), d_model_});
}

TensorView ResidualStream::padded(TensorView first_rows) const {
  return {first_rows.data(), first_rows.dtype(), {slices_.padded_rows(), d_model_}};
}

void ResidualStream::show_partial(TensorView partial) const {
  if (observer_ != nullptr) observer_->on_partial(partial);
}

void ResidualStream::show_sum(TensorView normed) const {
  if (observer_ != nullptr) observer_->on_sum(held_, normed);
}

TensorView ResidualStream::reduce(TensorView partial) {
  show_partial(partial);
  return sum_of(partial);
}

TensorView ResidualStream::sum_of(TensorView partial) {
  if (holds_all()) {
    tp_.all_reduce(partial);
    return partial;
  }
  const TensorView sum = take_slice();
  tp_.reduce_scatter(padded(partial), sum);
  return sum.rows(0, held_.n_rows());
}

TensorView ResidualStream::complete(TensorView slice) {
  if (comm_ == TpComm::reduce_scatter || tp_.size() == 1) return slice.rows(0, held_.n_rows());
  const TensorView all =
      workspace_.take(device_.compute_dtype(), {slices_.padded_rows(), d_model_});
  tp_.all_gather(slice, all);
  return all.rows(0, n_rows_);
}

TensorView ResidualStream::start_buffer() const { return holds_all() ? held_ : take_partial(); }

void ResidualStream::start(TensorView partial) {
  const TensorView sum = reduce(partial);
  if (!holds_all()) device_.copy_columns(sum, 0, d_model_, held_, 0);
  show_sum(held_);
}

void ResidualStream::gather_normed() {
  if (holds_all()) return;
  tp_.all_gather(normed_padded_.rows(tp_.rank() * slices_.each(), slices_.each()), normed_padded_);
}

void ResidualStream::norm(const NormWeight& next) {
  const IndexRange rows = held_rows();
  device_.rms_norm(held_, next.weight, next.eps, normed_.rows(rows.begin, rows.size()));
  gather_normed();
}

void ResidualStream::add_norm(TensorView sum, const NormWeight* next_norm) {
  if (next_norm == nullptr) {
    device_.add(held_, sum);
    show_sum(held_);
    return;
  }
  const IndexRange rows = held_rows();
  device_.add_rms_norm(
      held_, sum, next_norm->weight, next_norm->eps, normed_.rows(rows.begin, rows.size()));
  gather_normed();
  show_sum(normed_);
}

void ResidualStream::reduce_add_norm(TensorView partial,
                                     const NormWeight* post_norm,
                                     const NormWeight* next_norm) {
  show_partial(partial);
  if (post_norm == nullptr && next_norm != nullptr && holds_all() &&
      tp_.all_reduce_add_norm(partial, held_, next_norm->weight, next_norm->eps, normed_)) {
    device_.count_add_rms_norm(held_);
    show_sum(normed_);
    return;
  }
  const TensorView sum = sum_of(partial);
  if (post_norm != nullptr) device_.rms_norm(sum, post_norm->weight, post_norm->eps, sum);
  add_norm(sum, next_norm);
}

TensorView ResidualStream::gathered() {
  if (holds_all()) return held_;
  const TensorView all =
      workspace_.take(device_.compute_dtype(), {slices_.padded_rows(), d_model_});
  const TensorView mine = all.rows(tp_.rank() * slices_.each(), slices_.each());
  device_.copy_columns(held_, 0, d_model_, mine.rows(0, held_.n_rows()), 0);
  tp_.all_gather(mine, all);
  return all.rows(0, n_rows_);
}

}  // namespace testbed
