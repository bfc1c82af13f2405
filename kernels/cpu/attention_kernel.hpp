// The inner step of attention, one version per instruction set: a block of query rows against one
// chunk of keys, in tiles of 64. The rows share a KV head; if they are few, several KV heads with
// as many rows each are computed together (AVX-512).
#pragma once

#include <cstddef>
#include <cstdint>

namespace testbed::cpu {

constexpr int64_t attention_tile = 64;        // keys; tiles start at multiples of it
constexpr int64_t attention_chunk_tiles = 8;  // a chunk of keys gives one partial result
constexpr int64_t attention_max_rows = 48;    // query rows (queries x heads) of one block
constexpr int64_t attention_few_rows = 8;     // of a KV head: reads bound them, not arithmetic

struct AttentionChunk {
  bool is_bf16 = false;
  int64_t head_dim = 0;
  int64_t v_dim = 0;
  int64_t padded_dim = 0;  // head_dim rounded up to 32
  int64_t padded_v_dim = 0;
  int64_t n_rows = 0;  // of a KV head
  // More than 1 only for few rows; all rows are then [n_kv_heads, n_rows], and a key of KV head h
  // lies h * k_head_bytes beyond that of the first.
  int64_t n_kv_heads = 1;
  int64_t k_head_bytes = 0;
  int64_t v_head_bytes = 0;
  float scale = 1.0F;
  float softcap = 0.0F;      // 0 = none
  const float* q = nullptr;  // [n_rows, padded_dim]
  // Over a BF16 cache the same as pairs of bf16: [n_rows, padded_dim / 2].
  const uint32_t* q_pairs = nullptr;
  // Tiles [first_tile, end_tile) of the chunk hold visible keys. Rows of K and V [(chunk_tiles + 1)
  // * tile] of the first KV head, null for keys that no query row sees; the tile at end_tile is
  // only prefetched.
  int64_t first_tile = 0;
  int64_t end_tile = 0;
  const std::byte* const* k_rows = nullptr;
  const std::byte* const* v_rows = nullptr;
  // Row r sees keys [first_key[r], end_key[r]) of the chunk.
  const int32_t* first_key = nullptr;
  const int32_t* end_key = nullptr;
  // Result: running maximum (-inf without a visible key), sum of exponentials, unnormalised output
  // [n_rows, padded_v_dim].
  float* maximum = nullptr;
  float* sum = nullptr;
  float* out = nullptr;
  float* scratch = nullptr;  // attention_scratch_floats(), 64-byte aligned
};

// K transposed and V of one tile in f32, scores [max_rows, tile], factors [max_rows].
constexpr int64_t attention_scratch_floats(int64_t padded_dim, int64_t padded_v_dim) {
  return attention_tile * (padded_dim + padded_v_dim) + attention_max_rows * (attention_tile + 2);
}

void attend_chunk_portable(const AttentionChunk& c);
void attend_chunk_avx2(const AttentionChunk& c);
void attend_chunk_avx512(const AttentionChunk& c);
void attend_chunk_avx512_bf16(const AttentionChunk& c);  // of a BF16 cache

}  // namespace testbed::cpu
