// The scheduler's side of the paged KV cache: which block of which cp rank holds each token of a
// request. Layers that see the same window form a KV group and share block tables; a block has the
// same id in all layers of its group. Arithmetic only.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/config/model_config.hpp"
#include "runtime/config/run_config.hpp"

namespace testbed {

// Layers with one window size; window 0 sees everything. Layers that read another's cache are in
// its group and have no storage of their own.
struct KvGroup {
  int64_t window = 0;
  std::vector<int64_t> layers;  // global indices
};
// One group per distinct window, in order of first appearance.
std::vector<KvGroup> kv_groups(const ModelConfig& config);

// The blocks of one KV group on one cp rank. Deterministic: the lowest free block is taken, so that
// ids stay below the most that were ever in use at once.
class BlockPool {
 public:
  struct Usage {
    int64_t blocks = 0;
    int64_t tokens = 0;
  };
  explicit BlockPool(int64_t n_blocks) : n_blocks_(n_blocks) {}
  int32_t take();  // CHECKs that one is left: the pool is sized by blocks_for
  void give_back(int32_t block, int64_t n_tokens);
  void fill(int64_t n_tokens) { used_.tokens += n_tokens; }
  void note_peak();
  // When most blocks were in use; of equal times the last.
  Usage peak() const { return peak_; }

 private:
  int64_t n_blocks_;
  int64_t n_touched_ = 0;      // blocks [0, n_touched) have been in use
  std::vector<int32_t> free_;  // of those: a heap, smallest first
  Usage used_;
  Usage peak_;
};

// Where the positions [0, n_positions) of one request are kept. Entries are [position /
// block_size].
struct RequestBlocks {
  std::vector<std::vector<int32_t>> tables;  // [KV group] block in its owner's pool; -1 = released
  std::vector<int32_t> owners;               // cp rank; empty without cp
  std::vector<int64_t> n_released;           // [KV group] the first blocks, no longer held
  int64_t n_positions = 0;
  int64_t n_prompt_blocks = 0;  // begun by the prompt or what was cached before it
  int32_t first_owner = 0;      // the cp ranks are counted from this one
};

// The cp rank of each of n_blocks new blocks of a prompt. zigzag: 2 cp nearly equal runs, rank r
// has runs r and 2 cp - 1 - r, so that causal attention costs all ranks the same. contiguous: cp
// runs, rank r has run r.
std::vector<int32_t> owners_of_chunk(int64_t n_blocks, int cp, CpPlacement placement);

struct BlockPlacement {
  std::vector<KvGroup> groups;
  int64_t block_size = 16;
  int cp = 1;
  CpPlacement cp_placement = CpPlacement::zigzag;
};

// Gives requests their blocks, and takes them back.
class BlockPlacer {
 public:
  // n_blocks: [KV group], of each cp rank.
  BlockPlacer(BlockPlacement placement, const std::vector<int64_t>& n_blocks);

  // Of the request-th request: each counts the cp ranks from another one, so that many prompts
  // shorter than a few blocks do not all lie on the first.
  RequestBlocks no_blocks(size_t request = 0) const;
  // Tokens taken as cached are placed like one chunk of a prompt, without the blocks that no later
  // query can see.
  void add_cached(RequestBlocks& request, int64_t n_tokens);
  // A chunk of the prompt. A block that an earlier chunk began stays its owner's.
  void add_prompt(RequestBlocks& request, int64_t n_tokens);
  // The newest token of a decoding request. New blocks go round the cp ranks, the first behind the
  // prompt's to the request's first owner.
  void add_decoded(RequestBlocks& request);
  // Gives back the blocks that no query behind the positions placed so far can see.
  void release_unseen(RequestBlocks& request);
  void release_all(RequestBlocks& request);
  void note_peaks();  // once a step is placed
  const BlockPool& pool(int cp_rank, size_t group) const { return pools_[index(cp_rank, group)]; }

 private:
  size_t index(int64_t cp_rank, size_t group) const {
    return static_cast<size_t>(cp_rank) * placement_.groups.size() + group;
  }
  int64_t blocks_of(int64_t n_positions) const;
  // The first block that a query at next_position sees.
  int64_t first_seen(size_t group, int64_t next_position) const;
  BlockPool& pool_of(const RequestBlocks& request, size_t group, int64_t block);
  int32_t owner(const RequestBlocks& request, int64_t rank) const;
  void own_chunk(RequestBlocks& request, int64_t n_tokens);
  void hold(RequestBlocks& request, int64_t n_tokens);
  void release_until(RequestBlocks& request, size_t group, int64_t end);

  BlockPlacement placement_;
  std::vector<BlockPool> pools_;  // [cp rank][KV group]
};

}  // namespace testbed
