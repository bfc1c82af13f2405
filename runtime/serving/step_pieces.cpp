#include "runtime/serving/step_pieces.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/base/check.hpp"
#include "parallel/shard.hpp"

namespace testbed {
namespace {

int64_t rows_of(const std::vector<Piece>& pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), int64_t{0}, [](int64_t n, const Piece& p) {
    return n + p.n_rows;
  });
}

// Splits a step's pieces into microbatches of nearly equal rows: whole pieces where there are
// enough of them, else pieces are cut.
std::vector<std::vector<Piece>> split_pieces(const std::vector<Piece>& pieces, int n_groups) {
  const auto n_pieces = static_cast<int64_t>(pieces.size());
  std::vector<std::vector<Piece>> groups(static_cast<size_t>(n_groups));
  if (n_pieces >= n_groups) {
    for (int g = 0; g < n_groups; ++g) {
      const IndexRange range = split_range(n_pieces, n_groups, g);
      groups[static_cast<size_t>(g)].assign(pieces.begin() + range.begin,
                                            pieces.begin() + range.end);
    }
    return groups;
  }
  const int64_t n_rows = rows_of(pieces);
  size_t piece = 0;
  int64_t used = 0;
  for (int g = 0; g < n_groups; ++g) {
    int64_t room = split_range(n_rows, n_groups, g).size();
    while (room > 0) {
      const int64_t n = std::min(room, pieces[piece].n_rows - used);
      groups[static_cast<size_t>(g)].push_back({pieces[piece].request, n});
      room -= n;
      used += n;
      if (used == pieces[piece].n_rows) {
        ++piece;
        used = 0;
      }
    }
  }
  return groups;
}

}  // namespace

StepPieces::StepPieces(std::span<const RequestLengths> requests,
                       Limits limits,
                       BlockPlacement placement,
                       const std::vector<int64_t>& n_blocks)
    : limits_(limits), placer_(std::move(placement), n_blocks) {
  live_.reserve(requests.size());
  for (const RequestLengths& lengths : requests) {
    CHECK(lengths.prompt_tokens >= 1 && lengths.max_new_tokens >= 1);
    Live& live =
        live_.emplace_back(Live{.lengths = lengths, .blocks = placer_.no_blocks(live_.size())});
    if (lengths.cached_tokens > 0) placer_.add_cached(live.blocks, lengths.cached_tokens);
    left_of_prompts_ += lengths.prompt_tokens;
    ++n_decoding_;
  }
}

std::optional<StepShape> StepPieces::next_shape() const {
  const auto shape = [&](Phase phase, int64_t n_rows) {
    return StepShape{phase,
                     static_cast<int32_t>(std::min<int64_t>(limits_.n_microbatches, n_rows))};
  };
  if (left_of_prompts_ > 0) {
    return shape(Phase::prefill, std::min(left_of_prompts_, limits_.max_step_tokens));
  }
  if (n_decoding_ > 0) return shape(Phase::decode, n_decoding_);
  return std::nullopt;
}

std::vector<Piece> StepPieces::prefill_pieces() const {
  std::vector<Piece> pieces;
  int64_t room = limits_.max_step_tokens;
  for (size_t i = next_prompt_; i < live_.size() && room > 0; ++i) {
    pieces.push_back({i, std::min(left_of_prompt(live_[i]), room)});
    room -= pieces.back().n_rows;
  }
  return pieces;
}

std::vector<Piece> StepPieces::decode_pieces() const {
  std::vector<Piece> pieces;
  pieces.reserve(static_cast<size_t>(n_decoding_));
  for (size_t i = 0; i < live_.size(); ++i) {
    if (decodes(live_[i])) pieces.push_back({i, 1});
  }
  return pieces;
}

std::vector<std::vector<Piece>> StepPieces::next() {
  const std::optional<StepShape> shape = next_shape();
  CHECK(shape.has_value());
  release_behind();
  return split_pieces(shape->phase == Phase::prefill ? prefill_pieces() : decode_pieces(),
                      shape->n_microbatches);
}

void StepPieces::release_behind() {
  for (const size_t request : placed_) {
    Live& live = live_[request];
    if (left_of_prompt(live) == 0 && !decodes(live)) {
      placer_.release_all(live.blocks);
    } else {
      placer_.release_unseen(live.blocks);
    }
  }
  placed_.clear();
}

void StepPieces::place(const Piece& piece) {
  Live& live = live_[piece.request];
  if (left_of_prompt(live) > 0) {
    placer_.add_prompt(live.blocks, piece.n_rows);
    live.n_prefilled += piece.n_rows;
    left_of_prompts_ -= piece.n_rows;
  } else {
    CHECK(piece.n_rows == 1 && decodes(live));
    placer_.add_decoded(live.blocks);
  }
  placed_.push_back(piece.request);
  if (left_of_prompt(live) > 0) return;
  next_prompt_ = std::max(next_prompt_, piece.request + 1);  // prompts are taken in order
  ++live.n_planned;                                          // the last row samples
  if (!decodes(live)) --n_decoding_;
}

void StepPieces::stop(size_t request) {
  Live& live = live_[request];
  if (decodes(live)) --n_decoding_;
  live.stopped = true;
  placer_.release_all(live.blocks);
}

}  // namespace testbed
