// Fingerprints of what a rank has computed and been given at every step of a residual stream: where
// two ranks that must hold the same, or two equal generations, first differ tells who went wrong
// where.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/residual_stream.hpp"
#include "runtime/model/step_context.hpp"

namespace testbed {

struct ResidualMark {
  // ids: the tokens that a step begins with. partial: what this rank has computed by itself, before
  // it is summed over tp; of the head its part of the logits. sum: the residual with that sum in
  // it, and its norm: the same on all ranks of a tp group that each hold all rows.
  enum class What : uint8_t { ids, partial, sum };
  int32_t step = 0;
  int32_t microbatch = 0;
  int32_t layer = -1;  // -1: embedding and head
  Site site = Site::other;
  What what = What::sum;
  uint64_t hash = 0;
  bool same_place(const ResidualMark& other) const {
    return step == other.step && microbatch == other.microbatch && layer == other.layer &&
           site == other.site && what == other.what;
  }
};

// Adds the marks of one microbatch of a step; the context says where it is.
class ResidualMarker final : public ResidualObserver {
 public:
  ResidualMarker(const StepContext& context,
                 int32_t step,
                 int32_t microbatch,
                 std::vector<ResidualMark>& marks)
      : context_(context), step_(step), microbatch_(microbatch), marks_(marks) {}

  void on_ids(std::span<const int32_t> ids);
  void on_partial(TensorView partial) override;
  void on_sum(TensorView held, TensorView normed) override;

 private:
  void add(ResidualMark::What what, uint64_t hash);
  uint64_t hash_of(TensorView x, uint64_t seed) const;

  const StepContext& context_;
  int32_t step_;
  int32_t microbatch_;
  std::vector<ResidualMark>& marks_;
};

}  // namespace testbed
