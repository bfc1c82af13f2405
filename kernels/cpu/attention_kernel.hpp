// The inner step of attention, one version per instruction set: a block of query rows that share a
// KV head against one chunk of keys, in tiles of 64.
#pragma once

#include <cstddef>
#include <cstdint>

namespace testbed::cpu {

constexpr int64_t attention_tile = 64;        // keys; tiles start at multiples of it
constexpr int64_t attention_chunk_tiles = 8;  // a chunk of keys gives one partial result
constexpr int64_t attention_max_rows = 48;    // query rows (queries x heads) of one block

struct AttentionChunk {
  bool is_bf16 = false;
  int64_t head_dim = 0;
  int64_t v_dim = 0;
  int64_t padded_dim = 0;  // head_dim rounded up to 16
  int64_t padded_v_dim = 0;
  int64_t n_rows = 0;
  float scale = 1.0F;
  float softcap = 0.0F;      // 0 = none
  const float* q = nullptr;  // [n_rows, padded_dim]
  // Tiles [first_tile, end_tile) of the chunk hold visible keys. Rows of K and V [(chunk_tiles + 1)
  // * tile], null for keys that no query row sees; the tile at end_tile is only prefetched.
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

}  // namespace testbed::cpu
