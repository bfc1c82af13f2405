// How attention's work is cut: blocks of query rows that share a KV head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/kv.hpp"
#include "kernels/cpu/attention_kernel.hpp"
#include "kernels/cpu/attention_keys.hpp"

namespace testbed::cpu {

constexpr int64_t attention_chunk_keys = attention_chunk_tiles * attention_tile;

// Query heads heads[0 ... n_heads) at queries [first_query, first_query + n_queries) of a sequence.
// Row = query * n_heads + head.
struct AttentionBlock {
  const SequenceKeys* keys = nullptr;
  int64_t kv_head = 0;
  std::span<const int32_t> heads;
  int64_t first_row = 0;  // of its first query in the batch
  int64_t first_query = 0;
  int64_t n_queries = 0;
  SequenceKeys::Range seen;  // by some row, but for gaps of less than a tile

  int64_t n_heads() const { return static_cast<int64_t>(heads.size()); }
  int64_t n_rows() const { return n_queries * n_heads(); }
  int64_t work() const { return seen.empty() ? 0 : n_rows() * (seen.end - seen.first); }
  int64_t first_chunk() const { return seen.first / attention_chunk_keys; }
  int64_t end_chunk() const {
    return seen.empty() ? first_chunk() : (seen.end - 1) / attention_chunk_keys + 1;
  }
};

// The blocks of a sequence's rows over the heads of one KV head, appended to out.
void add_attention_blocks(const AttentionSequence& sequence,
                          const SequenceKeys& keys,
                          int64_t kv_head,
                          std::span<const int32_t> heads,
                          std::vector<AttentionBlock>& out);

}  // namespace testbed::cpu
