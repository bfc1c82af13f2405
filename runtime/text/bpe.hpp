// Byte-pair merging of one piece: the pair of lowest rank, leftmost first, until none is left.
// O(n log n) in the piece's length: a linked list of symbols and a heap of candidate pairs.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace testbed {

class BpeMerges {
 public:
  // Merge `rank` turns the neighbours (left, right) into `merged`. A repeated pair keeps the last.
  void add(int32_t left, int32_t right, int32_t rank, int32_t merged);

  // Appends the ids that the symbols become.
  void merge(std::span<const int32_t> symbols, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t merged;
  };
  const Merge* find(int32_t left, int32_t right) const;

  std::unordered_map<uint64_t, Merge> merges_;  // left << 32 | right
};

}  // namespace testbed
