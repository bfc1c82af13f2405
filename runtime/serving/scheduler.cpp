#include "runtime/serving/scheduler.hpp"

#include <algorithm>
#include <numeric>

#include "parallel/shard.hpp"

namespace testbed {

std::vector<int64_t> blocks_for(const std::vector<Request>& requests,
                                const SchedulerOptions& options) {
  std::vector<int64_t> blocks(options.kv_groups.size(), 0);
  for (const Request& request : requests) {
    const int64_t n_tokens = request.cached_tokens +
                             static_cast<int64_t>(request.prompt_ids.size()) +
                             request.max_new_tokens;
    for (size_t g = 0; g < blocks.size(); ++g) {
      blocks[g] += blocks_needed(
          options.kv_groups[g], n_tokens, options.max_step_tokens, options.block_size);
    }
  }
  return blocks;
}

Scheduler::Scheduler(std::vector<Request> requests, SchedulerOptions options)
    : options_(std::move(options)), usage_(options_.kv_groups.size()) {
  for (const int64_t n : blocks_for(requests, options_)) pools_.emplace_back(n);
  for (Request& request : requests) {
    CHECK(!request.prompt_ids.empty() && request.max_new_tokens >= 1);
    live_.push_back({.request = std::move(request),
                     .blocks = RequestBlocks(options_.kv_groups.size(), options_.block_size),
                     .generated = {}});
    // Cached tokens hold blocks like any others; a window keeps only what the first query sees.
    Live& live = live_.back();
    if (live.request.cached_tokens > 0) {
      live.blocks.grow_behind(pools_, options_.kv_groups, live.request.cached_tokens);
    }
  }
}

std::vector<Scheduler::Piece> Scheduler::prefill_pieces() const {
  std::vector<Piece> pieces;
  int64_t room = options_.max_step_tokens;
  for (size_t i = 0; i < live_.size() && room > 0; ++i) {
    const Live& live = live_[i];
    const int64_t left = static_cast<int64_t>(live.request.prompt_ids.size()) - live.n_prefilled;
    if (left == 0) continue;
    pieces.push_back({i, std::min(left, room)});
    room -= pieces.back().n_rows;
  }
  return pieces;
}

std::vector<Scheduler::Piece> Scheduler::decode_pieces() const {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < live_.size(); ++i) {
    const Live& live = live_[i];
    if (!live.stopped && live.n_planned < live.request.max_new_tokens) pieces.push_back({i, 1});
  }
  return pieces;
}

std::optional<StepPlan> Scheduler::next() {
  const int32_t n_out = static_cast<int32_t>(slots_.size()) - n_updated_;
  CHECK(n_out <= (options_.run_ahead ? 1 : 0));
  if (std::vector<Piece> pieces = prefill_pieces(); !pieces.empty()) {
    return plan_step(Phase::prefill, pieces);
  }
  if (std::vector<Piece> pieces = decode_pieces(); !pieces.empty()) {
    return plan_step(Phase::decode, pieces);
  }
  return std::nullopt;
}

namespace {

// Splits a step's pieces into microbatches of nearly equal rows: whole pieces where there are
// enough of them, else pieces are cut.
template <typename Piece>
std::vector<std::vector<Piece>> split_pieces(const std::vector<Piece>& pieces, int wanted) {
  const int64_t n_rows =
      std::accumulate(pieces.begin(), pieces.end(), int64_t{0}, [](int64_t n, const Piece& p) {
        return n + p.n_rows;
      });
  const auto n_pieces = static_cast<int64_t>(pieces.size());
  std::vector<std::vector<Piece>> groups;
  if (n_pieces >= wanted) {
    for (int g = 0; g < wanted; ++g) {
      const IndexRange range = split_range(n_pieces, wanted, g);
      groups.emplace_back(pieces.begin() + range.begin, pieces.begin() + range.end);
    }
    return groups;
  }
  const int n_groups = static_cast<int>(std::min<int64_t>(wanted, n_rows));
  size_t piece = 0;
  int64_t used = 0;
  for (int g = 0; g < n_groups; ++g) {
    int64_t room = split_range(n_rows, n_groups, g).size();
    groups.emplace_back();
    while (room > 0) {
      const int64_t n = std::min(room, pieces[piece].n_rows - used);
      groups.back().push_back({pieces[piece].request, n});
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

StepPlan Scheduler::plan_step(Phase phase, const std::vector<Piece>& pieces) {
  StepPlan plan{.step = static_cast<int32_t>(slots_.size()), .phase = phase, .microbatches = {}};
  slots_.emplace_back();
  for (const Piece& piece : pieces) {
    Live& live = live_[piece.request];
    live.blocks.release_unseen(pools_, options_.kv_groups, live.next_position());
  }
  for (const std::vector<Piece>& group : split_pieces(pieces, options_.n_microbatches)) {
    MicrobatchPlan& microbatch = plan.microbatches.emplace_back();
    for (const Piece& piece : group) append(plan, microbatch, piece);
  }
  note_usage();
  return plan;
}

void Scheduler::note_usage() {
  for (size_t g = 0; g < pools_.size(); ++g) {
    if (pools_[g].n_used() < usage_[g].blocks) continue;
    usage_[g] = {.blocks = pools_[g].n_used(), .tokens = 0};
    for (const Live& live : live_) {
      usage_[g].tokens += live.blocks.held_tokens(g, live.next_position());
    }
  }
}

void Scheduler::append(StepPlan& plan, MicrobatchPlan& microbatch, const Piece& piece) {
  Live& live = live_[piece.request];
  const bool prompt = !live.prefilled();
  // The row of the newest token, which is not in the cache yet, comes after all rows planned so
  // far.
  const int64_t first_position =
      prompt ? live.request.cached_tokens + live.n_prefilled : live.next_position();
  const auto first_row = static_cast<int32_t>(microbatch.tokens.size());
  for (int64_t i = 0; i < piece.n_rows; ++i) {
    TokenSource source;
    if (prompt) {
      source.id = live.request.prompt_ids[static_cast<size_t>(live.n_prefilled + i)];
    } else if (static_cast<int64_t>(live.generated.size()) == live.n_planned) {
      source.id = live.generated.back();
    } else {
      source.step = live.last_step;
      source.slot = live.last_slot;
    }
    microbatch.tokens.push_back(source);
  }
  live.blocks.grow(pools_, first_position + piece.n_rows);
  microbatch.sequences.push_back({.request = live.request.index,
                                  .first_row = first_row,
                                  .n_rows = static_cast<int32_t>(piece.n_rows),
                                  .first_position = first_position,
                                  .block_tables = live.blocks.tables()});
  if (prompt) live.n_prefilled += piece.n_rows;
  const bool samples = live.prefilled();
  for (int64_t i = 0; i < piece.n_rows; ++i) {
    const bool last = i + 1 == piece.n_rows;
    if (!(samples && last) && !(prompt && options_.all_prompt_logits)) continue;
    microbatch.logits_rows.push_back({.row = static_cast<int32_t>(first_row + i),
                                      .request = live.request.index,
                                      .position = first_position + i,
                                      .sample = samples && last});
  }
  if (samples) {
    ++live.n_planned;
    live.last_step = plan.step;
    live.last_slot = static_cast<int32_t>(slots_.back().size());
    slots_.back().push_back(piece.request);
  }
}

void Scheduler::update(int32_t step, const std::vector<int32_t>& ids) {
  CHECK(step == n_updated_ && static_cast<size_t>(step) < slots_.size());
  const std::vector<size_t>& slots = slots_[static_cast<size_t>(step)];
  CHECK(ids.size() == slots.size());
  ++n_updated_;
  last_accepted_.clear();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    Live& live = live_[slots[slot]];
    if (live.stopped) continue;  // the token beyond the stop
    const bool stop = std::find(options_.stop_ids.begin(), options_.stop_ids.end(), ids[slot]) !=
                      options_.stop_ids.end();
    if (!stop) {
      live.generated.push_back(ids[slot]);
      last_accepted_.emplace_back(slots[slot], ids[slot]);
    }
    live.stopped =
        stop || static_cast<int64_t>(live.generated.size()) == live.request.max_new_tokens;
  }
}

}  // namespace testbed
