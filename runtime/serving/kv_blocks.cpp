#include "runtime/serving/kv_blocks.hpp"

#include <algorithm>
#include <functional>

#include "kernels/base/check.hpp"
#include "parallel/shard.hpp"

namespace testbed {

std::vector<KvGroup> kv_groups(const ModelConfig& config) {
  std::vector<KvGroup> groups;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const int64_t window = config.layer_windows[static_cast<size_t>(layer)];
    auto group = std::find_if(
        groups.begin(), groups.end(), [&](const KvGroup& g) { return g.window == window; });
    if (group == groups.end()) group = groups.insert(groups.end(), KvGroup{window, {}});
    group->layers.push_back(layer);
  }
  return groups;
}

int32_t BlockPool::take() {
  ++used_.blocks;
  if (free_.empty()) {
    CHECK(n_touched_ < n_blocks_);
    return static_cast<int32_t>(n_touched_++);
  }
  std::pop_heap(free_.begin(), free_.end(), std::greater<>{});
  const int32_t block = free_.back();
  free_.pop_back();
  return block;
}

void BlockPool::give_back(int32_t block, int64_t n_tokens) {
  free_.push_back(block);
  std::push_heap(free_.begin(), free_.end(), std::greater<>{});
  --used_.blocks;
  used_.tokens -= n_tokens;
}

void BlockPool::note_peak() {
  if (used_.blocks >= peak_.blocks) peak_ = used_;
}

std::vector<int32_t> owners_of_chunk(int64_t n_blocks, int cp, CpPlacement placement) {
  std::vector<int32_t> owners;
  owners.reserve(static_cast<size_t>(n_blocks));
  const int n_runs = placement == CpPlacement::zigzag ? 2 * cp : cp;
  for (int run = 0; run < n_runs; ++run) {
    const int32_t owner = run < cp ? run : n_runs - 1 - run;
    owners.insert(
        owners.end(), static_cast<size_t>(split_range(n_blocks, n_runs, run).size()), owner);
  }
  return owners;
}

BlockPlacer::BlockPlacer(BlockPlacement placement, const std::vector<int64_t>& n_blocks)
    : placement_(std::move(placement)) {
  CHECK(placement_.cp >= 1 && placement_.block_size >= 1);
  CHECK(n_blocks.size() == placement_.groups.size());
  pools_.reserve(static_cast<size_t>(placement_.cp) * n_blocks.size());
  for (int rank = 0; rank < placement_.cp; ++rank) {
    for (const int64_t n : n_blocks) pools_.emplace_back(n);
  }
}

RequestBlocks BlockPlacer::no_blocks(size_t request) const {
  const size_t n_groups = placement_.groups.size();
  return {.tables = std::vector<std::vector<int32_t>>(n_groups),
          .owners = {},
          .n_released = std::vector<int64_t>(n_groups, 0),
          .first_owner = static_cast<int32_t>(request % static_cast<size_t>(placement_.cp))};
}

int64_t BlockPlacer::blocks_of(int64_t n_positions) const {
  return (n_positions + placement_.block_size - 1) / placement_.block_size;
}

int64_t BlockPlacer::first_seen(size_t group, int64_t next_position) const {
  const int64_t window = placement_.groups[group].window;
  if (window == 0) return 0;
  return std::max<int64_t>(0, next_position - window + 1) / placement_.block_size;
}

BlockPool& BlockPlacer::pool_of(const RequestBlocks& request, size_t group, int64_t block) {
  const int32_t owner = placement_.cp == 1 ? 0 : request.owners[static_cast<size_t>(block)];
  return pools_[index(owner, group)];
}

int32_t BlockPlacer::owner(const RequestBlocks& request, int64_t rank) const {
  return static_cast<int32_t>((request.first_owner + rank) % placement_.cp);
}

void BlockPlacer::own_chunk(RequestBlocks& request, int64_t n_tokens) {
  request.n_prompt_blocks = blocks_of(request.n_positions + n_tokens);
  if (placement_.cp == 1) return;
  const int64_t n_added = request.n_prompt_blocks - blocks_of(request.n_positions);
  const std::vector<int32_t> added =
      owners_of_chunk(n_added, placement_.cp, placement_.cp_placement);
  request.owners.reserve(request.owners.size() + added.size());
  for (const int32_t rank : added) request.owners.push_back(owner(request, rank));
}

// Blocks for the next n_tokens positions, whose owners are settled.
void BlockPlacer::hold(RequestBlocks& request, int64_t n_tokens) {
  const int64_t block_size = placement_.block_size;
  const int64_t end = request.n_positions + n_tokens;
  for (size_t g = 0; g < request.tables.size(); ++g) {
    std::vector<int32_t>& table = request.tables[g];
    for (int64_t b = request.n_positions / block_size; b < blocks_of(end); ++b) {
      if (b < request.n_released[g]) {
        if (b == static_cast<int64_t>(table.size())) table.push_back(-1);
        continue;
      }
      BlockPool& pool = pool_of(request, g, b);
      if (b == static_cast<int64_t>(table.size())) table.push_back(pool.take());
      pool.fill(std::min(end, (b + 1) * block_size) -
                std::max(request.n_positions, b * block_size));
    }
  }
  request.n_positions = end;
}

void BlockPlacer::add_cached(RequestBlocks& request, int64_t n_tokens) {
  CHECK(request.n_positions == 0);
  own_chunk(request, n_tokens);
  for (size_t g = 0; g < request.tables.size(); ++g)
    request.n_released[g] = first_seen(g, n_tokens);
  hold(request, n_tokens);
}

void BlockPlacer::add_prompt(RequestBlocks& request, int64_t n_tokens) {
  own_chunk(request, n_tokens);
  hold(request, n_tokens);
}

void BlockPlacer::add_decoded(RequestBlocks& request) {
  const int64_t block = request.n_positions / placement_.block_size;
  if (placement_.cp > 1 && block == static_cast<int64_t>(request.owners.size())) {
    request.owners.push_back(owner(request, block - request.n_prompt_blocks));
  }
  hold(request, 1);
}

void BlockPlacer::release_until(RequestBlocks& request, size_t group, int64_t end) {
  std::vector<int32_t>& table = request.tables[group];
  end = std::min(end, static_cast<int64_t>(table.size()));
  int64_t& b = request.n_released[group];
  for (; b < end; ++b) {
    const int64_t n_tokens =
        std::min(placement_.block_size, request.n_positions - b * placement_.block_size);
    int32_t& entry = table[static_cast<size_t>(b)];
    pool_of(request, group, b).give_back(entry, n_tokens);
    entry = -1;
  }
}

void BlockPlacer::release_unseen(RequestBlocks& request) {
  for (size_t g = 0; g < request.tables.size(); ++g) {
    release_until(request, g, first_seen(g, request.n_positions));
  }
}

void BlockPlacer::release_all(RequestBlocks& request) {
  for (size_t g = 0; g < request.tables.size(); ++g) {
    release_until(request, g, static_cast<int64_t>(request.tables[g].size()));
  }
}

void BlockPlacer::note_peaks() {
  for (BlockPool& pool : pools_) pool.note_peak();
}

}  // namespace testbed
