// Attention over a paged cache: decode over long contexts, each run on another part of the cache;
// prefill of a prompt over itself.
#include <cmath>
#include <memory>
#include <numeric>

#include "kernels/attention_cost.hpp"
#include "kernels/base/contiguous_sequence.hpp"
#include "runtime/probe/probe_op.hpp"
#include "runtime/probe/synthetic.hpp"

namespace testbed {
namespace {

constexpr int64_t head_dim = 128;
constexpr int64_t block_size = 16;  // tokens, as the engine's cache has it

struct Case {
  AttentionPhase phase;
  int64_t context;
  int64_t n_heads;
  int64_t n_kv_heads;
};
constexpr Case cases[] = {{AttentionPhase::decode, 512, 32, 8},
                          {AttentionPhase::decode, 2048, 32, 8},
                          {AttentionPhase::decode, 8192, 32, 8},
                          {AttentionPhase::decode, 2048, 16, 4},
                          {AttentionPhase::decode, 2048, 8, 8},
                          {AttentionPhase::prefill, 128, 32, 8},
                          {AttentionPhase::prefill, 512, 32, 8},
                          {AttentionPhase::prefill, 512, 16, 4},
                          {AttentionPhase::prefill, 1024, 32, 8}};

// Memory of the keys and values of all decode cases: each lays its own blocks into it.
struct Cache {
  Tensor k;
  Tensor v;
  explicit Cache(Device& device)
      : k(synthetic_tensor(device,
                           device.compute_dtype(),
                           {rotated_bytes / 2 / dtype_bytes(device.compute_dtype(), 1)})),
        v(synthetic_tensor(device, k.dtype(), k.shape())) {}
};

// All that an attention call refers to.
struct Bench {
  std::shared_ptr<const Cache> cache;
  Tensor q;  // [rows, n_heads, head_dim]
  Tensor out;
  KvView kv;
  std::vector<int32_t> blocks;  // of one run: consecutive
  std::vector<int32_t> head_to_kv;

  Bench(Device& device, std::shared_ptr<const Cache> memory, const Case& c, int64_t n_rows)
      : cache(std::move(memory)),
        q(synthetic_tensor(device, cache->k.dtype(), {n_rows, c.n_heads, head_dim})),
        out(device.allocate(cache->k.dtype(), {n_rows, c.n_heads, head_dim})),
        kv{.k = cache->k.data(),
           .v = cache->v.data(),
           .dtype = cache->k.dtype(),
           .n_blocks = cache->k.n_elements() / (c.n_kv_heads * block_size * head_dim),
           .block_size = block_size,
           .n_kv_heads = c.n_kv_heads,
           .head_dim = head_dim,
           .v_dim = head_dim},
        blocks(static_cast<size_t>((c.context + block_size - 1) / block_size)),
        head_to_kv(static_cast<size_t>(c.n_heads)) {
    for (int64_t h = 0; h < c.n_heads; ++h)
      head_to_kv[static_cast<size_t>(h)] = static_cast<int32_t>(h * c.n_kv_heads / c.n_heads);
  }

  // Each call on blocks of its own, as far as they reach.
  void run(Device& device, const Case& c, int64_t call) {
    const auto n_own = static_cast<int64_t>(blocks.size());
    const int64_t first = call % (kv.n_blocks / n_own) * n_own;
    std::iota(blocks.begin(), blocks.end(), static_cast<int32_t>(first));
    const ContiguousSequence contiguous(q.shape()[0], c.context, blocks, block_size);
    const AttentionSequence sequence = contiguous.view();
    device.attention(q,
                     kv,
                     {.sequences = {&sequence, 1},
                      .scale = 1.0F / std::sqrt(static_cast<float>(head_dim)),
                      .head_to_kv = head_to_kv},
                     out);
  }
};

}  // namespace

std::vector<ProbeOp> attention_ops(Device& device) {
  const auto cache = std::make_shared<const Cache>(device);
  std::vector<ProbeOp> ops;
  for (const Case& c : cases) {
    const int64_t n_rows = c.phase == AttentionPhase::decode ? 1 : c.context;
    const ContiguousSequence contiguous(n_rows, c.context);
    const AttentionSequence sequence = contiguous.view();
    const auto bench = std::make_shared<Bench>(device, cache, c, n_rows);
    ops.push_back({.kind = OpKind::attention,
                   .shape = {.n_sequences = 1,
                             .n_query_rows = n_rows,
                             .longest_context = c.context,
                             .n_kv_heads = c.n_kv_heads},
                   .cost = attention_cost({&sequence, 1}, 0, c.n_heads, bench->kv.shape()),
                   .point = AttentionPoint{.phase = c.phase,
                                           .batch = 1,
                                           .context = c.context,
                                           .n_heads = c.n_heads,
                                           .n_kv_heads = c.n_kv_heads,
                                           .head_dim = head_dim},
                   .run = [&device, bench, c](int64_t call) { bench->run(device, c, call); }});
  }
  return ops;
}

}  // namespace testbed
