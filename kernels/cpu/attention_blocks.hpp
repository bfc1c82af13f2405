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
// Row = (KV head * n_queries + query) * group + head of its group.
struct AttentionBlock {
  const SequenceKeys* keys = nullptr;
  int64_t kv_head = 0;  // the first
  int64_t n_kv_heads = 1;
  std::span<const int32_t> heads;  // by KV head, as many of each
  int64_t first_row = 0;           // of its first query in the batch
  int64_t first_query = 0;
  int64_t n_queries = 0;
  SequenceKeys::Range seen;  // by some row, but for gaps of less than a tile

  int64_t n_heads() const { return static_cast<int64_t>(heads.size()); }
  int64_t group() const { return n_heads() / n_kv_heads; }
  int64_t n_rows() const { return n_queries * n_heads(); }
  int64_t n_rows_of_kv_head() const { return n_queries * group(); }
  int64_t query(int64_t row) const { return row % n_rows_of_kv_head() / group(); }
  int64_t head(int64_t row) const {
    const int64_t index = row / n_rows_of_kv_head() * group() + row % group();
    return heads[static_cast<size_t>(index)];
  }
  int64_t work() const { return seen.empty() ? 0 : n_rows() * (seen.end - seen.first); }
  int64_t first_chunk() const { return seen.first / attention_chunk_keys; }
  int64_t end_chunk() const {
    return seen.empty() ? first_chunk() : (seen.end - 1) / attention_chunk_keys + 1;
  }
};

// Query heads by KV head.
class HeadGroups {
 public:
  HeadGroups(std::span<const int32_t> head_to_kv, int64_t n_kv_heads);
  int64_t n_kv_heads() const { return static_cast<int64_t>(first_.size()) - 1; }
  // Those of KV heads [kv_head, kv_head + n).
  std::span<const int32_t> heads(int64_t kv_head, int64_t n = 1) const;
  // Of every KV head; 0 if they differ.
  int64_t size() const { return size_; }

 private:
  std::vector<size_t> first_;  // by KV head, then the end
  std::vector<int32_t> heads_;
  int64_t size_ = 0;
};

// The blocks of a sequence's rows over all heads, appended to out. Where a KV head has few rows, up
// to most_kv_heads of them share a block.
void add_attention_blocks(const AttentionSequence& sequence,
                          const SequenceKeys& keys,
                          const HeadGroups& groups,
                          int64_t most_kv_heads,
                          std::vector<AttentionBlock>& out);

}  // namespace testbed::cpu
