#include "runtime/text/bpe.hpp"

#include <functional>
#include <queue>
#include <tuple>

namespace testbed {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

struct Symbol {
  int32_t id;
  int64_t previous;  // index, -1 at the start
  int64_t next;      // index, -1 at the end
  bool gone;         // absorbed by its left neighbour
};

struct Candidate {
  int32_t rank;
  int64_t left;    // index of the left symbol
  int32_t merged;  // what the pair became when it was queued
  bool operator>(const Candidate& o) const {
    return std::tie(rank, left) > std::tie(o.rank, o.left);
  }
};

}  // namespace

void BpeMerges::add(int32_t left, int32_t right, int32_t rank, int32_t merged) {
  merges_.insert_or_assign(pair_key(left, right), Merge{rank, merged});
}

const BpeMerges::Merge* BpeMerges::find(int32_t left, int32_t right) const {
  const auto it = merges_.find(pair_key(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void BpeMerges::merge(std::span<const int32_t> symbols, std::vector<int32_t>& out) const {
  const auto n = static_cast<int64_t>(symbols.size());
  std::vector<Symbol> list(symbols.size());
  for (int64_t i = 0; i < n; ++i) {
    list[static_cast<size_t>(i)] = {
        symbols[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1, false};
  }
  const auto at = [&](int64_t i) -> Symbol& { return list[static_cast<size_t>(i)]; };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto propose = [&](int64_t left) {
    if (left < 0 || at(left).next < 0) return;
    const Merge* merge = find(at(left).id, at(at(left).next).id);
    if (merge != nullptr) queue.push({merge->rank, left, merge->merged});
  };
  for (int64_t i = 0; i + 1 < n; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = at(top.left);
    if (left.gone || left.next < 0) continue;
    Symbol& right = at(left.next);
    const Merge* merge = find(left.id, right.id);
    if (merge == nullptr || merge->rank != top.rank || merge->merged != top.merged) continue;
    left.id = top.merged;
    right.gone = true;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = top.left;
    propose(left.previous);
    propose(top.left);
  }
  for (const Symbol& s : list) {
    if (!s.gone) out.push_back(s.id);
  }
}

}  // namespace testbed
