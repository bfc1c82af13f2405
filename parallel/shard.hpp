// Which slice of a tensor a rank owns. Arithmetic only; whether a split is legal for a model is
// decided in runtime/config/split.hpp before any of this is called.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/index_range.hpp"

namespace testbed {

// Part `part` of [0, n) in `parts` parts that differ by at most one granule; the first parts are
// the larger ones. The last granule may be short. Parts may be empty.
IndexRange split_range(int64_t n, int parts, int part, int64_t granularity = 1);

// Vocabulary rows of a rank: ceil(V / tp) each, the last ranks fewer or none, so that row r is on
// rank r / ceil(V / tp).
IndexRange vocabulary_shard(int64_t vocab_size, int tp, int tp_rank);

// Attention heads of one rank. With more ranks than KV heads each KV head is on tp / n_kv_heads
// consecutive ranks.
struct HeadShard {
  IndexRange heads;     // query heads
  IndexRange kv_heads;  // the KV heads those attend to
  bool first_replica =
      true;  // this rank's copy of its KV heads is the one that counts as the model's
  std::vector<int32_t> head_to_kv;  // [heads.size()] local query head -> local KV head
};
HeadShard shard_heads(int64_t n_heads, int64_t n_kv_heads, int tp, int tp_rank);

// Layers of each pipeline chunk, in order, each layer exactly once: the split with the smallest
// largest cost; among those the one whose last chunk has the most layers and whose others are most
// even, larger ones first. Cost is weight bytes or what is proportional to them; the head is on the
// last chunk. unit_starts: the layers that may begin a chunk, ascending, the first is 0; layers
// between two of them stay together. n_chunks is at most the number of units. Chunk c is virtual
// stage c / pp of pipeline stage c % pp.
std::vector<IndexRange> split_layers(std::span<const int64_t> layer_costs,
                                     std::span<const int64_t> unit_starts,
                                     int n_chunks,
                                     int64_t head_cost);

}  // namespace testbed
