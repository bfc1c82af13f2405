#include "kernels/cpu/attention_blocks.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/base/check.hpp"

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

// The blocks of some heads, which start out as `block`.
void add_blocks(const AttentionSequence& sequence,
                AttentionBlock block,
                std::vector<AttentionBlock>& out) {
  const int64_t most_queries = attention_max_rows / block.n_heads();
  for (int64_t i = 0; i < sequence.n_rows; i += block.n_queries) {
    block.first_row = sequence.first_row + i;
    block.first_query = i;
    block.n_queries = 0;
    block.seen = {};
    const int64_t n_left = std::min(most_queries, sequence.n_rows - i);
    while (block.n_queries < n_left && extend(block.seen, block.keys->seen(i + block.n_queries))) {
      ++block.n_queries;
    }
    out.push_back(block);
  }
}

}  // namespace

HeadGroups::HeadGroups(std::span<const int32_t> head_to_kv, int64_t n_kv_heads)
    : first_(static_cast<size_t>(n_kv_heads) + 1), heads_(head_to_kv.size()) {
  for (const int32_t kv_head : head_to_kv) {
    CHECK(kv_head >= 0 && kv_head < n_kv_heads);
    ++first_[static_cast<size_t>(kv_head) + 1];
  }
  if (n_kv_heads > 0) size_ = static_cast<int64_t>(first_[1]);
  for (const size_t n : std::span(first_).subspan(1)) {
    if (static_cast<int64_t>(n) != size_) size_ = 0;
  }
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  std::vector<size_t> next(first_.begin(), first_.end() - 1);
  for (size_t h = 0; h < head_to_kv.size(); ++h) {
    heads_[next[static_cast<size_t>(head_to_kv[h])]++] = static_cast<int32_t>(h);
  }
}

std::span<const int32_t> HeadGroups::heads(int64_t kv_head, int64_t n) const {
  const size_t begin = first_[static_cast<size_t>(kv_head)];
  return std::span(heads_).subspan(begin, first_[static_cast<size_t>(kv_head + n)] - begin);
}

void add_attention_blocks(const AttentionSequence& sequence,
                          const SequenceKeys& keys,
                          const HeadGroups& groups,
                          int64_t most_kv_heads,
                          std::vector<AttentionBlock>& out) {
  const int64_t n_rows = sequence.n_rows * groups.size();  // of a KV head
  const bool together = n_rows > 0 && n_rows <= attention_few_rows;
  const int64_t step =
      together ? std::clamp<int64_t>(attention_max_rows / n_rows, 1, most_kv_heads) : 1;
  for (int64_t kv_head = 0; kv_head < groups.n_kv_heads(); kv_head += step) {
    AttentionBlock block{.keys = &keys, .kv_head = kv_head};
    block.n_kv_heads = std::min(step, groups.n_kv_heads() - kv_head);
    const std::span<const int32_t> heads = groups.heads(kv_head, block.n_kv_heads);
    for (size_t h = 0; h < heads.size(); h += attention_max_rows) {
      block.heads = heads.subspan(h, std::min<size_t>(heads.size() - h, attention_max_rows));
      add_blocks(sequence, block, out);
    }
  }
}

}  // namespace testbed::cpu
