#include "kernels/cpu/attention_keys.hpp"

#include <algorithm>

#include "kernels/base/check.hpp"

namespace testbed::cpu {
namespace {

// The number of keys at positions below a bound, for bounds that ascend.
class CountBelow {
 public:
  explicit CountBelow(std::span<const PositionRun> runs) : runs_(runs) {}

  int64_t operator()(int64_t position) {
    while (run_ < runs_.size() && runs_[run_].end() <= position) before_ += runs_[run_++].n;
    return run_ == runs_.size() ? before_
                                : before_ + std::max<int64_t>(0, position - runs_[run_].first);
  }

 private:
  std::span<const PositionRun> runs_;
  size_t run_ = 0;
  int64_t before_ = 0;  // keys of the runs before
};

}  // namespace

SequenceKeys::SequenceKeys(const AttentionSequence& sequence, int64_t window, int64_t chunk_keys)
    : sequence_(sequence) {
  const int64_t origin = sequence.keys.empty() ? 0 : sequence.keys.front().first % chunk_keys;
  number_blocks(origin);
  find_seen(window, origin);
}

void SequenceKeys::number_blocks(int64_t origin) {
  block_first_.reserve(sequence_.blocks.size() + 1);
  int64_t index = origin;
  for (const KvBlock& block : sequence_.blocks) {
    CHECK(block.n_tokens >= 0);
    block_first_.push_back(index);
    index += block.n_tokens;
  }
  block_first_.push_back(index);
  int64_t n_keys = 0;
  for (const PositionRun& run : sequence_.keys) n_keys += run.n;
  CHECK(index - origin == n_keys);
}

void SequenceKeys::find_seen(int64_t window, int64_t origin) {
  CHECK(sequence_.first_row >= 0 && sequence_.n_rows >= 0);
  seen_.reserve(static_cast<size_t>(sequence_.n_rows));
  CountBelow before_window(sequence_.keys);
  CountBelow causal(sequence_.keys);
  for (const PositionRun& run : sequence_.rows) {
    for (int64_t position = run.first; position < run.end(); ++position) {
      const int64_t hidden = window == 0 ? 0 : before_window(position - window + 1);
      seen_.push_back({origin + hidden, origin + causal(position + 1)});
    }
  }
  CHECK(n_rows() == sequence_.n_rows);
}

void SequenceKeys::find(Range keys,
                        const KvView& kv,
                        int64_t kv_head,
                        const std::byte** k_rows,
                        const std::byte** v_rows) const {
  const int64_t k_bytes = dtype_bytes(kv.dtype, kv.head_dim);
  // Values that are the first part of their keys lie where those lie.
  const auto* v = static_cast<const std::byte*>(kv.v == nullptr ? kv.k : kv.v);
  const int64_t v_bytes = kv.v == nullptr ? k_bytes : dtype_bytes(kv.dtype, kv.v_dim);
  auto b =
      static_cast<size_t>(std::upper_bound(block_first_.begin(), block_first_.end(), keys.first) -
                          block_first_.begin() - 1);
  for (int64_t key = keys.first; key < keys.end; ++b) {
    const KvBlock& block = sequence_.blocks[b];
    CHECK(block.block >= 0 && block.block < kv.n_blocks && block.n_tokens <= kv.block_size);
    const int64_t end = std::min(keys.end, block_first_[b + 1]);
    int64_t slot = (block.block * kv.n_kv_heads + kv_head) * kv.block_size + key - block_first_[b];
    for (; key < end; ++key, ++slot) {
      *k_rows++ = static_cast<const std::byte*>(kv.k) + slot * k_bytes;
      *v_rows++ = v + slot * v_bytes;
    }
  }
}

}  // namespace testbed::cpu
