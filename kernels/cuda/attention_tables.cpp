#include "kernels/cuda/attention_tables.hpp"

#include <algorithm>
#include <limits>

#include "kernels/base/check.hpp"

namespace testbed::cuda {
namespace {

int32_t narrow(int64_t x) {
  CHECK(x >= std::numeric_limits<int32_t>::min() && x <= std::numeric_limits<int32_t>::max());
  return static_cast<int32_t>(x);
}

// The number of the first key at a position or behind, for positions that ascend.
class FirstKeyFrom {
 public:
  FirstKeyFrom(std::span<const KvBlock> blocks, int64_t block_size)
      : blocks_(blocks), block_size_(block_size) {}

  int64_t operator()(int64_t position) {
    while (i_ < size() && blocks_[i_].first_position + blocks_[i_].n_tokens <= position) ++i_;
    const auto block = static_cast<int64_t>(i_);
    if (i_ == size()) {
      return i_ == 0 ? 0 : (block - 1) * block_size_ + blocks_[i_ - 1].n_tokens;
    }
    return block * block_size_ + std::max<int64_t>(0, position - blocks_[i_].first_position);
  }

 private:
  size_t size() const { return blocks_.size(); }

  std::span<const KvBlock> blocks_;
  int64_t block_size_;
  size_t i_ = 0;
};

// Numbers [first, end) of keys.
struct KeyRange {
  int64_t first = 0;
  int64_t end = 0;
  bool empty() const { return first >= end; }
  void include(const KeyRange& o) {
    if (o.empty()) return;
    *this = empty() ? o : KeyRange{std::min(first, o.first), std::max(end, o.end)};
  }
};

class TableMaker {
 public:
  TableMaker(const KvView& kv, int64_t window, const TileRule& rule)
      : kv_(kv), window_(window), rule_(rule) {}

  void add_rows(const AttentionSequence& sequence);
  void add_tiles(size_t first_row);
  AttentionTables take() { return std::move(tables_); }
  AttentionTables& tables() { return tables_; }

 private:
  // Where the sequence's block 0 would lie in the table, had it all been put there.
  int32_t add_blocks(std::span<const KvBlock> blocks, const KeyRange& seen);
  bool joins(const AttentionTile& tile, const AttentionRow& row) const;

  const KvView& kv_;
  int64_t window_;
  TileRule rule_;
  AttentionTables tables_;
};

int32_t TableMaker::add_blocks(std::span<const KvBlock> blocks, const KeyRange& seen) {
  const auto at = static_cast<int64_t>(tables_.blocks.size());
  if (seen.empty()) return narrow(at);
  const int64_t first = seen.first / kv_.block_size;
  const int64_t end = (seen.end - 1) / kv_.block_size + 1;
  for (int64_t b = first; b < end; ++b) {
    const KvBlock& block = blocks[static_cast<size_t>(b)];
    CHECK(block.block >= 0 && block.block < kv_.n_blocks);
    CHECK(block.n_tokens >= 0 && block.n_tokens <= kv_.block_size);
    tables_.blocks.push_back(block.block);
    tables_.block_tokens.push_back(block.n_tokens);
    const int64_t n_seen = std::min(seen.end - b * kv_.block_size, kv_.block_size);
    if (block.n_tokens < n_seen) tables_.has_holes = true;
  }
  return narrow(at - first);
}

void TableMaker::add_rows(const AttentionSequence& sequence) {
  FirstKeyFrom before_window(sequence.blocks, kv_.block_size);
  FirstKeyFrom behind(sequence.blocks, kv_.block_size);
  const size_t first_row = tables_.rows.size();
  int64_t row = sequence.first_row;
  KeyRange all;
  for (const PositionRun& run : sequence.rows) {
    for (int64_t position = run.first; position < run.end(); ++position, ++row) {
      KeyRange seen{window_ == 0 ? 0 : before_window(position - window_ + 1), behind(position + 1)};
      if (seen.empty()) seen = {};
      all.include(seen);
      tables_.rows.push_back({narrow(row), 0, narrow(seen.first), narrow(seen.end)});
    }
  }
  CHECK(row - sequence.first_row == sequence.n_rows);
  const int32_t table = add_blocks(sequence.blocks, all);
  for (size_t i = first_row; i < tables_.rows.size(); ++i) tables_.rows[i].table = table;
}

// Whether a tile stays without a gap of keys that none of its rows sees, but for one of less than
// the kernel's tiles.
bool TableMaker::joins(const AttentionTile& tile, const AttentionRow& row) const {
  if (tile.n_rows >= rule_.queries_per_tile) return false;
  const bool either_empty = tile.first_key >= tile.end_key || row.first_key >= row.end_key;
  return either_empty || row.first_key <= tile.end_key + tile_keys;
}

void TableMaker::add_tiles(size_t first_row) {
  AttentionTile tile{};
  const auto flush = [&] {
    if (tile.n_rows > 0) tables_.tiles.push_back(tile);
  };
  for (size_t i = first_row; i < tables_.rows.size(); ++i) {
    const AttentionRow& row = tables_.rows[i];
    if (tile.n_rows == 0 || !joins(tile, row)) {
      flush();
      tile = {narrow(static_cast<int64_t>(i)),
              1,
              row.first_key,
              row.end_key,
              row.first_key,
              row.end_key};
      continue;
    }
    KeyRange seen{tile.first_key, tile.end_key};
    seen.include({row.first_key, row.end_key});
    ++tile.n_rows;
    tile.first_key = narrow(seen.first);
    tile.end_key = narrow(seen.end);
    tile.all_first = std::max(tile.all_first, row.first_key);
    tile.all_end = std::min(tile.all_end, row.end_key);
  }
  flush();
}

}  // namespace

AttentionTables attention_tables(std::span<const AttentionSequence> sequences,
                                 const KvView& kv,
                                 int64_t window,
                                 const TileRule& rule) {
  TableMaker maker(kv, window, rule);
  AttentionTables& tables = maker.tables();
  size_t n_rows = 0;
  for (const AttentionSequence& sequence : sequences) {
    n_rows += static_cast<size_t>(sequence.n_rows);
  }
  tables.rows.reserve(n_rows);
  const auto is_tiled = [&](const AttentionSequence& sequence) {
    return rule.min_tiled_rows > 0 && sequence.n_rows >= rule.min_tiled_rows;
  };
  for (const AttentionSequence& sequence : sequences) {
    if (!is_tiled(sequence)) maker.add_rows(sequence);
  }
  tables.n_single_rows = static_cast<int64_t>(tables.rows.size());
  for (const AttentionRow& row : tables.rows) {
    tables.longest = std::max<int64_t>(tables.longest, row.end_key - row.first_key);
  }
  for (const AttentionSequence& sequence : sequences) {
    if (!is_tiled(sequence)) continue;
    const size_t first_row = tables.rows.size();
    maker.add_rows(sequence);
    maker.add_tiles(first_row);
  }
  // Longest first, so that the processors end together.
  std::stable_sort(
      tables.tiles.begin(), tables.tiles.end(), [](const AttentionTile& a, const AttentionTile& b) {
        return a.end_key - a.first_key > b.end_key - b.first_key;
      });
  return maker.take();
}

HeadGroups head_groups(std::span<const int32_t> head_to_kv, int64_t n_kv_heads, int64_t limit) {
  HeadGroups out;
  const auto n_heads = static_cast<int64_t>(head_to_kv.size());
  for (int32_t kv_head = 0; kv_head < n_kv_heads; ++kv_head) {
    const auto first = static_cast<int64_t>(out.heads.size());
    for (int64_t h = 0; h < n_heads; ++h) {
      if (head_to_kv[static_cast<size_t>(h)] == kv_head) out.heads.push_back(narrow(h));
    }
    const int64_t n = static_cast<int64_t>(out.heads.size()) - first;
    if (n == 0) continue;
    const int64_t n_groups = (n + limit - 1) / limit;
    for (int64_t i = 0; i < n_groups; ++i) {
      const int64_t begin = n * i / n_groups;
      const int64_t count = n * (i + 1) / n_groups - begin;
      out.groups.push_back({kv_head, narrow(first + begin), narrow(count)});
      out.largest = std::max(out.largest, count);
    }
  }
  CHECK(static_cast<int64_t>(out.heads.size()) == n_heads);
  return out;
}

}  // namespace testbed::cuda
