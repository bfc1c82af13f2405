// Attention and the KV cache: shapes checked, costs counted.
#include <algorithm>

#include "kernels/attention_cost.hpp"
#include "kernels/device_counted.hpp"

namespace testbed {
namespace {

OpShape attention_shape(const AttentionParams& params, int64_t n_kv_heads, bool partial) {
  OpShape shape{.n_sequences = static_cast<int64_t>(params.sequences.size()),
                .n_kv_heads = n_kv_heads,
                .partial = partial};
  for (const AttentionSequence& sequence : params.sequences) {
    shape.n_query_rows += sequence.n_rows;
    shape.longest_context =
        std::max(shape.longest_context, visible_tokens(sequence, params.window));
  }
  return shape;
}

// A result in F32 [m, n_heads, v_dim] and its log-sum-exp [m, n_heads].
bool is_partial(TensorView out, TensorView lse) {
  return out.dtype() == DType::F32 && lse.dtype() == DType::F32 && out.shape().rank() == 3 &&
         lse.n_elements() == out.shape()[0] * out.shape()[1];
}

}  // namespace

void Device::write_kv(TensorView k,
                      TensorView v,
                      const KvView& kv,
                      std::span<const int64_t> slots) {
  const int64_t m = k.n_rows();
  CHECK(m == static_cast<int64_t>(slots.size()) && k.dtype() == kv.dtype);
  CHECK(k.n_elements() == m * kv.n_kv_heads * kv.head_dim);
  CHECK(kv.v == nullptr || v.n_elements() == m * kv.n_kv_heads * kv.v_dim);
  const int64_t n_stored =
      std::count_if(slots.begin(), slots.end(), [](int64_t slot) { return slot >= 0; });
  counted(
      {OpKind::kv_write, n_stored, k.dtype()},
      [&] { return kv_write_cost(n_stored, kv.shape()); },
      [&] { do_write_kv(k, v, kv, slots); });
}

void Device::gather_blocks(const KvView& from, std::span<const int32_t> blocks, const KvView& to) {
  const auto n_blocks = static_cast<int64_t>(blocks.size());
  CHECK(from.block_bytes() == to.block_bytes() && from.block_size == to.block_size);
  CHECK(n_blocks <= to.n_blocks);
  counted(
      {OpKind::copy, n_blocks, from.dtype},
      [&] { return gather_blocks_cost(n_blocks * from.block_size, from.shape()); },
      [&] { do_gather_blocks(from, blocks, to); });
}

void Device::attention(
    TensorView q, const KvView& kv, const AttentionParams& params, TensorView out, TensorView lse) {
  const auto n_heads = static_cast<int64_t>(params.head_to_kv.size());
  CHECK(q.shape().rank() == 3 && q.shape()[1] == n_heads && q.shape()[2] == kv.head_dim);
  CHECK(out.n_elements() == q.n_rows() * n_heads * kv.v_dim);
  CHECK(params.sinks.empty() || params.sinks.n_elements() == n_heads);
  const bool partial = !lse.empty();
  CHECK(!partial || is_partial(out, lse));
  counted(
      {OpKind::attention, q.n_rows(), kv.dtype, attention_shape(params, kv.n_kv_heads, partial)},
      [&] {
        OpCost cost = attention_cost(params.sequences, params.window, n_heads, kv.shape(), partial);
        if (!partial && !params.sinks.empty()) cost.weight_bytes += params.sinks.n_bytes();
        if (params.model_dim > 0) {
          cost.model_flops = cost.flops / (kv.head_dim + kv.v_dim) * params.model_dim;
        }
        return cost;
      },
      [&] { do_attention(q, kv, params, out, lse); });
}

void Device::merge_attention(TensorView total,
                             TensorView total_lse,
                             TensorView part,
                             TensorView part_lse) {
  CHECK(is_partial(total, total_lse) && is_partial(part, part_lse));
  CHECK(total.shape() == part.shape());
  counted(
      {OpKind::merge, total.n_rows(), DType::F32, {.partial = true}},
      [&] { return merge_attention_cost(total.n_rows(), total.shape()[1], total.shape()[2]); },
      [&] { do_merge_attention(total, total_lse, part, part_lse); });
}

void Device::finish_attention(TensorView total,
                              TensorView total_lse,
                              TensorView sinks,
                              TensorView out) {
  CHECK(is_partial(total, total_lse) && total.n_elements() == out.n_elements());
  CHECK(sinks.empty() || sinks.n_elements() == total.shape()[1]);
  counted(
      {OpKind::merge, total.n_rows(), DType::F32},
      [&] {
        return finish_attention_cost(
            total.n_rows(), total.shape()[1], total.shape()[2], !sinks.empty(), out.dtype());
      },
      [&] { do_finish_attention(total, total_lse, sinks, out); });
}

}  // namespace testbed
