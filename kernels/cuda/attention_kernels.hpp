// What the host hands to the attention kernels. The keys of a sequence are numbered by slot: key j
// lies in slot j % block_size of the sequence's block j / block_size. A query row then sees a range
// of numbers [first_key, end_key), but for slots behind a partly filled block's tokens; kernels
// know neither positions nor windows.
#pragma once

#include <cstdint>

#include "kernels/base/kv.hpp"
#include "kernels/cuda/queue.hpp"

namespace testbed::cuda {

// One query row of the batch (all heads).
struct AttentionRow {
  int32_t row;    // of q and out
  int32_t table;  // where the sequence's blocks begin in PagedKv::blocks
  int32_t first_key;
  int32_t end_key;
};

// Consecutive query rows of one sequence that a block of the tiled kernels takes together.
struct AttentionTile {
  int32_t first;  // AttentionRow
  int32_t n_rows;
  int32_t first_key;  // that some row sees
  int32_t end_key;
  int32_t all_first;  // keys [all_first, all_end) every row sees
  int32_t all_end;
};

// Query heads of one KV head that a block takes together: AttentionCall::heads[first, first + n).
struct HeadGroup {
  int32_t kv_head;
  int32_t first;
  int32_t n;
};

struct PagedKv {
  const void* k;                // [n_blocks, n_kv_heads, block_size, head_dim]
  const void* v;                // [n_blocks, n_kv_heads, block_size, v_dim]; nullptr: within k
  const int32_t* blocks;        // block ids of all sequences
  const int32_t* block_tokens;  // tokens of each; nullptr: every slot among the keys holds a token
  int32_t block_size;
  int32_t block_shift;  // log2(block_size), -1 if it is no power of two
  int32_t n_kv_heads;
  int32_t head_dim;
  int32_t v_dim;
  int32_t unused;  // no padding: calls are compared by their bytes
};

// Scores are kept times log2(e), so that exponentials are powers of two.
struct AttentionCall {
  const void* q;  // [m, n_heads, head_dim]
  void* out;      // [m, n_heads, v_dim]
  float* lse;     // [m, n_heads] or nullptr
  PagedKv kv;
  const AttentionRow* rows;
  const AttentionTile* tiles;
  const HeadGroup* groups;
  const int32_t* heads;  // query heads by KV head
  const float* sinks;    // [n_heads] or nullptr
  float* partial;        // scratch: [n_rows, n_heads, n_splits, v_dim], then their {maximum, sum}
  int32_t n_heads;
  int32_t n_rows;
  int32_t n_splits;
  int32_t out_is_f32;
  float scale;    // of q.k, times log2(e)
  float softcap;  // times log2(e); 0: none
};

static_assert(sizeof(AttentionCall) == 13 * 8 + 12 * 4, "padding would be compared");

// What does not fit in a call's bytes because it chooses the kernel.
struct AttentionLaunch {
  DType dtype;
  int64_t n_rows;  // or tiles
  int64_t n_groups;
  int64_t max_group;  // heads of the largest group
  int64_t max_pairs;  // (query row, head) pairs of the largest tile and group
};

constexpr int64_t min_keys_per_split = 256;

// attention_decode.cu: a block per query row, group and split of the keys. Any head size up to
// max_row_head_dim.
int64_t max_row_head_dim(DType dtype);
// Heads per group that the kernel of this head size takes.
int64_t row_heads(DType dtype, int64_t head_dim, int64_t v_dim);
void attend_rows(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch);

// attention_groups.cu: the same on tensor cores, for what can_attend_tiles.
constexpr int64_t group_heads = 16;  // heads per group
void attend_groups(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch);

// attention_prefill.cu: a block per tile and group, bf16 on tensor cores.
constexpr int64_t tile_rows = 64;  // (query row, head) pairs
constexpr int64_t tile_keys = 64;
bool can_attend_tiles(DType dtype, int64_t head_dim, int64_t v_dim);
void attend_tiles(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch);

// attention_wide.cu: a block per tile, group and split of the keys, for larger heads.
bool can_attend_wide(const KvView& kv);
void attend_wide(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch);

// attention_merge.cu: the splits of each row to its result.
void merge_splits(Queue& queue, const AttentionCall& call);

}  // namespace testbed::cuda
