#include "parallel/shard.hpp"

#include <algorithm>

#include "kernels/base/check.hpp"

namespace testbed {

IndexRange split_range(int64_t n, int parts, int part, int64_t granularity) {
  CHECK(parts > 0 && part >= 0 && part < parts && granularity > 0 && n % granularity == 0);
  const int64_t granules = n / granularity;
  const int64_t each = granules / parts;
  const int64_t larger = granules % parts;
  const int64_t begin = part * each + std::min<int64_t>(part, larger);
  const int64_t size = each + (part < larger ? 1 : 0);
  return {begin * granularity, (begin + size) * granularity};
}

IndexRange vocabulary_shard(int64_t vocab_size, int tp, int tp_rank) {
  const int64_t each = (vocab_size + tp - 1) / tp;
  return {std::min(vocab_size, each * tp_rank), std::min(vocab_size, each * (tp_rank + 1))};
}

HeadShard shard_heads(int64_t n_heads, int64_t n_kv_heads, int tp, int tp_rank) {
  CHECK(n_heads % tp == 0 && n_heads % n_kv_heads == 0);
  CHECK(n_kv_heads % tp == 0 || tp % n_kv_heads == 0);
  HeadShard shard;
  shard.heads = split_range(n_heads, tp, tp_rank);
  const int64_t heads_per_kv = n_heads / n_kv_heads;
  shard.kv_heads = {shard.heads.begin / heads_per_kv, (shard.heads.end - 1) / heads_per_kv + 1};
  shard.first_replica = shard.heads.begin % heads_per_kv == 0;
  for (int64_t head = shard.heads.begin; head < shard.heads.end; ++head) {
    shard.head_to_kv.push_back(static_cast<int32_t>(head / heads_per_kv - shard.kv_heads.begin));
  }
  return shard;
}

std::vector<IndexRange> split_layers(int64_t n_layers,
                                     int n_chunks,
                                     int64_t layer_cost,
                                     int64_t head_cost) {
  CHECK(n_chunks >= 1 && n_layers >= n_chunks && layer_cost > 0);
  // With equal layers only the number on the last chunk is free: the rest is split evenly.
  int64_t best_last = 1;
  int64_t best_cost = -1;
  const int64_t most_last = n_layers - (n_chunks - 1);
  for (int64_t last = most_last; last >= 1; --last) {
    const int64_t others =
        n_chunks == 1 ? 0 : (n_layers - last + n_chunks - 2) / (n_chunks - 1) * layer_cost;
    if (n_chunks == 1 && last != n_layers) break;
    const int64_t cost = std::max(others, last * layer_cost + head_cost);
    if (best_cost < 0 || cost < best_cost) {
      best_cost = cost;
      best_last = last;
    }
  }
  std::vector<IndexRange> chunks;
  for (int c = 0; c + 1 < n_chunks; ++c) {
    chunks.push_back(split_range(n_layers - best_last, n_chunks - 1, c));
  }
  chunks.push_back({n_layers - best_last, n_layers});
  return chunks;
}

}  // namespace testbed
