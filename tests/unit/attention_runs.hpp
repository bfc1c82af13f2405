// Rows and keys in several runs of positions, as context parallelism leaves them.
#pragma once

#include <random>

#include "tests/unit/attention_batch.hpp"

namespace testbed::cpu {

// Ascending runs with gaps, up to `end`.
inline std::vector<PositionRun> random_runs(std::mt19937& random, int64_t longest, int64_t end) {
  std::vector<PositionRun> runs;
  const auto up_to = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int64_t at = up_to(longest); at < end; at += 1 + up_to(longest)) {
    runs.push_back({at, std::min(end - at, 1 + up_to(longest))});
    at = runs.back().end();
  }
  return runs;
}

inline AttentionDims random_dims(std::mt19937& random) {
  AttentionDims dims;
  dims.dtype = random() % 2 == 0 ? DType::F32 : DType::BF16;
  dims.n_kv_heads = 1 + static_cast<int64_t>(random() % 2);
  dims.n_heads = dims.n_kv_heads * (1 + static_cast<int64_t>(random() % 5));
  dims.v_in_k = random() % 4 == 0;
  dims.head_dim = 8 * (1 + static_cast<int64_t>(random() % 6));
  dims.v_dim = dims.v_in_k ? dims.head_dim / 2 : 8 * (1 + static_cast<int64_t>(random() % 6));
  dims.block_size = random() % 2 == 0 ? 16 : 5;
  const int64_t windows[] = {0, 0, 1, 7, 64, 300};
  dims.window = windows[random() % 6];
  dims.softcap = random() % 3 == 0 ? 5.0F : 0.0F;
  dims.with_sinks = random() % 3 == 0;
  dims.partial = random() % 2 == 0;
  return dims;
}

// Zigzag: of 2 n slices of a sequence, rank r has slices r and 2 n - 1 - r.
inline std::vector<PositionRun> zigzag(int64_t n_tokens, int64_t n_ranks, int64_t rank) {
  const auto cut = [&](int64_t slice) { return n_tokens * slice / (2 * n_ranks); };
  const auto run = [&](int64_t slice) {
    return PositionRun{cut(slice), cut(slice + 1) - cut(slice)};
  };
  return {run(rank), run(2 * n_ranks - 1 - rank)};
}

}  // namespace testbed::cpu
