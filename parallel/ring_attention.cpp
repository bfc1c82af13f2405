#include "parallel/ring_attention.hpp"

#include <algorithm>
#include <array>

namespace testbed {
namespace {

// Blocks that lie one behind the other, keys first, so that they are one message.
KvView packed_blocks(TensorView buffer, const KvView& like, int64_t n_blocks) {
  KvView view = like;
  view.n_blocks = n_blocks;
  view.k = buffer.data();
  if (like.v != nullptr) {
    const int64_t k_bytes =
        dtype_bytes(like.dtype, n_blocks * like.n_kv_heads * like.block_size * like.head_dim);
    view.v = static_cast<std::byte*>(buffer.data()) + k_bytes;
  }
  return view;
}

TensorView message_of(const KvView& blocks) {
  return {blocks.k, blocks.dtype, {blocks.n_blocks, blocks.token_elements() * blocks.block_size}};
}

bool sees_nothing(std::span<const AttentionSequence> sequences) {
  return std::all_of(sequences.begin(), sequences.end(), [](const AttentionSequence& s) {
    return s.n_rows == 0 || s.blocks.empty();
  });
}

struct Partial {
  TensorView out;  // F32 [m, n_heads, v_dim]
  TensorView lse;  // F32 [m, n_heads]
};

Partial take_partial(Workspace& workspace, const Shape& shape) {
  return {workspace.take(DType::F32, shape), workspace.take(DType::F32, {shape[0], shape[1]})};
}

}  // namespace

void ContextParallelAttention::ring(const RingPlan& plan,
                                    const KvView& cache,
                                    const PartialAttention& attend,
                                    const AttentionResult& result) {
  const Workspace::Frame frame(workspace_);
  const Partial total = take_partial(workspace_, result.out.shape());
  const Partial part = take_partial(workspace_, result.out.shape());
  int64_t most_blocks = 0;
  for (const RingStep& step : plan.steps()) {
    most_blocks = std::max({most_blocks, step.n_receive, static_cast<int64_t>(step.send.size())});
  }
  const int64_t block_elements = cache.token_elements() * cache.block_size;
  const auto take_blocks = [&] {
    return workspace_.take(cache.dtype, {most_blocks * block_elements});
  };
  const std::array<TensorView, 2> received{take_blocks(), take_blocks()};
  const TensorView gathered = take_blocks();
  const int next = (cp_.rank() + 1) % cp_.size();
  const int previous = (cp_.rank() + cp_.size() - 1) % cp_.size();

  KvView here = cache;
  for (size_t s = 0; s < plan.steps().size(); ++s) {
    const RingStep& step = plan.steps()[s];
    on_step_(static_cast<int>(s));
    const KvView arriving = packed_blocks(received[s % 2], cache, step.n_receive);
    Pending coming;
    Pending going;
    if (step.n_receive > 0) coming = cp_.recv(message_of(arriving), previous);
    if (!step.send.empty()) {
      const auto n_send = static_cast<int64_t>(step.send.size());
      KvView leaving = here;  // all that came goes on as it is
      if (s == 0 || n_send < here.n_blocks) {
        leaving = packed_blocks(gathered, cache, n_send);
        device_.gather_blocks(here, step.send, leaving);
      }
      going = cp_.send(message_of(leaving), next);
    }
    if (s == 0) {
      attend(here, step.sequences, total.out, total.lse);
    } else if (!sees_nothing(step.sequences)) {
      attend(here, step.sequences, part.out, part.lse);
      device_.merge_attention(total.out, total.lse, part.out, part.lse);
    }
    coming.wait();
    going.wait();
    here = arriving;
  }
  on_step_(-1);
  device_.finish_attention(total.out, total.lse, result.sinks, result.out);
}

void ContextParallelAttention::merge(const KvView& cache,
                                     std::span<const AttentionSequence> sequences,
                                     const PartialAttention& attend,
                                     const AttentionResult& result) {
  const Workspace::Frame frame(workspace_);
  const Shape shape = result.out.shape();
  const Shape lse_shape{shape[0], shape[1]};
  const int64_t n_elements = shape.n_elements() + lse_shape.n_elements();
  const TensorView all = workspace_.take(DType::F32, {cp_.size(), n_elements});
  const auto of_rank = [&](int rank) -> Partial {
    auto* begin = static_cast<std::byte*>(all.rows(rank, 1).data());
    return {{begin, DType::F32, shape},
            {begin + dtype_bytes(DType::F32, shape.n_elements()), DType::F32, lse_shape}};
  };
  const Partial mine = of_rank(cp_.rank());
  attend(cache, sequences, mine.out, mine.lse);
  cp_.all_gather(all.rows(cp_.rank(), 1), all);
  const Partial total = of_rank(0);
  for (int rank = 1; rank < cp_.size(); ++rank) {
    const Partial part = of_rank(rank);
    device_.merge_attention(total.out, total.lse, part.out, part.lse);
  }
  device_.finish_attention(total.out, total.lse, result.sinks, result.out);
}

}  // namespace testbed
