// A batch's sequences and heads as the flat arrays that the attention kernels read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/kv.hpp"
#include "kernels/cuda/attention_kernels.hpp"

namespace testbed::cuda {

struct AttentionTables {
  std::vector<int32_t> blocks;
  std::vector<int32_t> block_tokens;
  bool has_holes = false;  // slots without a token among the keys' numbers
  std::vector<AttentionRow> rows;
  std::vector<AttentionTile> tiles;
  int64_t n_single_rows = 0;  // rows [0, n_single_rows) are in no tile
  int64_t longest = 0;        // keys that a single row sees
};

// Sequences of at least min_tiled_rows rows are cut into tiles of up to queries_per_tile rows.
struct TileRule {
  int64_t min_tiled_rows = 0;  // 0: no tiles
  int64_t queries_per_tile = 0;
};
AttentionTables attention_tables(std::span<const AttentionSequence> sequences,
                                 const KvView& kv,
                                 int64_t window,
                                 const TileRule& rule);

// Query heads by KV head, at most `limit` in a group.
struct HeadGroups {
  std::vector<int32_t> heads;
  std::vector<HeadGroup> groups;
  int64_t largest = 0;
};
HeadGroups head_groups(std::span<const int32_t> head_to_kv, int64_t n_kv_heads, int64_t limit);

}  // namespace testbed::cuda
