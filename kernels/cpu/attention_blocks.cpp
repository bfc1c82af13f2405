#include "kernels/cpu/attention_blocks.hpp"

#include <algorithm>

namespace testbed::cpu {
namespace {

// Adds a query's keys to those seen; false if that would put a tile between that no query sees.
bool extend(SequenceKeys::Range& seen, const SequenceKeys::Range& more) {
  if (more.empty()) return true;
  if (seen.empty()) {
    seen = more;
    return true;
  }
  if (more.first / attention_tile > (seen.end - 1) / attention_tile + 1) return false;
  seen.end = more.end;
  return true;
}

}  // namespace

void add_attention_blocks(const AttentionSequence& sequence,
                          const SequenceKeys& keys,
                          int64_t kv_head,
                          std::span<const int32_t> heads,
                          std::vector<AttentionBlock>& out) {
  for (size_t h = 0; h < heads.size(); h += attention_max_rows) {
    AttentionBlock block{.keys = &keys, .kv_head = kv_head};
    block.heads = heads.subspan(h, std::min<size_t>(heads.size() - h, attention_max_rows));
    const int64_t most_queries = attention_max_rows / block.n_heads();
    for (int64_t i = 0; i < sequence.n_rows; i += block.n_queries) {
      block.first_row = sequence.first_row + i;
      block.first_query = i;
      block.n_queries = 0;
      block.seen = {};
      const int64_t n_left = std::min(most_queries, sequence.n_rows - i);
      while (block.n_queries < n_left && extend(block.seen, keys.seen(i + block.n_queries))) {
        ++block.n_queries;
      }
      out.push_back(block);
    }
  }
}

}  // namespace testbed::cpu
