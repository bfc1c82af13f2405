#include "runtime/serving/residual_marks.hpp"

#include "kernels/base/hash.hpp"

namespace testbed {

void ResidualMarker::add(ResidualMark::What what, uint64_t hash) {
  marks_.push_back({.step = step_,
                    .microbatch = microbatch_,
                    .layer = static_cast<int32_t>(context_.layer),
                    .site = context_.site,
                    .what = what,
                    .hash = hash});
}

uint64_t ResidualMarker::hash_of(TensorView x, uint64_t seed) const {
  const Tensor host(x.dtype(), x.shape());
  context_.device.download(x, host);
  return hash_bytes(
      {static_cast<const std::byte*>(host.data()), static_cast<size_t>(host.n_bytes())}, seed);
}

void ResidualMarker::on_ids(std::span<const int32_t> ids) {
  add(ResidualMark::What::ids, hash_bytes(std::as_bytes(ids)));
}

void ResidualMarker::on_partial(TensorView partial) {
  add(ResidualMark::What::partial, hash_of(partial, 0));
}

void ResidualMarker::on_sum(TensorView held, TensorView normed) {
  add(ResidualMark::What::sum, hash_of(normed, hash_of(held, 0)));
}

}  // namespace testbed
