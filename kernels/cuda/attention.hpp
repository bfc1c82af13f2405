// Paged attention on the device: decoding (split over the keys, merged by log-sum-exp) and prompts
// (tiles on tensor cores, bf16; CUDA cores in f32). Meanings and shapes as in kernels/device.hpp.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/queue.hpp"
#include "kernels/device.hpp"

namespace testbed::cuda {

struct AttentionCall;
struct AttentionPlan;

class Attention {
 public:
  explicit Attention(Queue& queue);
  ~Attention();
  void attend(TensorView q,
              const KvView& kv,
              const AttentionParams& params,
              TensorView out,
              TensorView lse);

 private:
  void attend_single(const KvView& kv, const AttentionPlan& plan, AttentionCall call);
  // Made anew, or that of an earlier layer of the section (AttentionParams::id).
  const AttentionPlan& plan_of(const KvView& kv, const AttentionParams& params);

  Queue& queue_;
  int64_t n_processors_ = 0;
  std::vector<std::unique_ptr<AttentionPlan>> plans_;  // of the section
  int64_t section_ = 0;
  // Outputs of splits until they are merged. Its size depends on the model's shapes alone, and it
  // grows in calls that are not taped; a taped call that would need more does not split.
  Tensor scratch_;
};

// attention_merge.cu
void merge_attention(
    Queue& queue, TensorView total, TensorView total_lse, TensorView part, TensorView part_lse);
void finish_attention(
    Queue& queue, TensorView total, TensorView total_lse, TensorView sinks, TensorView out);

}  // namespace testbed::cuda
