// The keys of one sequence by index: its cached tokens in order, numbered from the first one's
// position modulo a chunk. So where the positions have no gap, chunks of indices are chunks of
// positions, and every query row sees a range of indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/kv.hpp"

namespace testbed::cpu {

class SequenceKeys {
 public:
  struct Range {
    int64_t first = 0;
    int64_t end = 0;
    bool empty() const { return first >= end; }
  };

  SequenceKeys(const AttentionSequence& sequence, int64_t window, int64_t chunk_keys);

  int64_t n_rows() const { return static_cast<int64_t>(seen_.size()); }
  // The keys that a query row sees. Both ends ascend with the row; an empty range may lie anywhere.
  Range seen(int64_t row) const { return seen_[static_cast<size_t>(row)]; }

  // Where keys [first, end) of a KV head lie: to k_rows[0], v_rows[0] and on.
  void find(Range keys,
            const KvView& kv,
            int64_t kv_head,
            const std::byte** k_rows,
            const std::byte** v_rows) const;

 private:
  void number_blocks(int64_t origin);
  void find_seen(int64_t window, int64_t origin);

  const AttentionSequence& sequence_;
  std::vector<int64_t> block_first_;  // index of each block's first key, then the end
  std::vector<Range> seen_;
};

}  // namespace testbed::cpu
