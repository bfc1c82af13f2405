#include "runtime/serving/scheduler.hpp"

#include <algorithm>
#include <limits>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

StepPieces pieces_of(const std::vector<Request>& requests,
                     const SchedulerOptions& options,
                     const std::vector<int64_t>& pool_blocks) {
  std::vector<RequestLengths> lengths;
  lengths.reserve(requests.size());
  for (const Request& request : requests) {
    lengths.push_back({.cached_tokens = request.cached_tokens,
                       .prompt_tokens = static_cast<int64_t>(request.prompt_ids.size()),
                       .max_new_tokens = request.max_new_tokens});
  }
  const bool limited = !pool_blocks.empty();
  constexpr int64_t any_number = std::numeric_limits<int32_t>::max();
  return {lengths,
          {.max_step_tokens = options.max_step_tokens, .n_microbatches = options.n_microbatches},
          {.groups = options.kv_groups,
           .block_size = options.block_size,
           .cp = options.cp,
           .cp_placement = options.cp_placement},
          limited ? pool_blocks : std::vector<int64_t>(options.kv_groups.size(), any_number)};
}

}  // namespace

std::vector<int64_t> blocks_for(const std::vector<Request>& requests,
                                const SchedulerOptions& options) {
  StepPieces pieces = pieces_of(requests, options, {});
  while (pieces.next_shape()) {
    for (const std::vector<Piece>& microbatch : pieces.next()) {
      for (const Piece& piece : microbatch) pieces.place(piece);
    }
    pieces.step_placed();
  }
  std::vector<int64_t> blocks(options.kv_groups.size(), 0);
  for (size_t g = 0; g < blocks.size(); ++g) {
    for (int rank = 0; rank < options.cp; ++rank) {
      blocks[g] = std::max(blocks[g], pieces.pool(rank, g).peak().blocks);
    }
  }
  return blocks;
}

Scheduler::Scheduler(std::vector<Request> requests, SchedulerOptions options)
    : requests_(std::move(requests)),
      options_(std::move(options)),
      pieces_(pieces_of(requests_, options_, options_.pool_blocks)),
      answers_(requests_.size()) {}

StepPlan Scheduler::new_step(Phase phase) {
  const int32_t n_out = static_cast<int32_t>(slots_.size()) - n_updated_;
  CHECK(n_out <= (options_.run_ahead ? 1 : 0));
  slots_.emplace_back();
  return {.step = static_cast<int32_t>(slots_.size()) - 1, .phase = phase, .microbatches = {}};
}

std::optional<StepPlan> Scheduler::next() {
  const std::optional<StepShape> shape = next_shape();
  if (!shape) return std::nullopt;
  StepPlan plan = new_step(shape->phase);
  plan.microbatches.reserve(static_cast<size_t>(shape->n_microbatches));
  for (const std::vector<Piece>& pieces : pieces_.next()) {
    MicrobatchPlan& microbatch = plan.microbatches.emplace_back();
    for (const Piece& piece : pieces) append(plan, microbatch, piece);
  }
  pieces_.step_placed();
  return plan;
}

StepPlan Scheduler::idle_step(StepShape shape) {
  StepPlan plan = new_step(shape.phase);
  plan.microbatches.resize(static_cast<size_t>(shape.n_microbatches));
  return plan;
}

TokenSource Scheduler::newest_token(size_t request) const {
  const Answer& answer = answers_[request];
  if (static_cast<int64_t>(answer.generated.size()) == pieces_.n_planned(request)) {
    return {.id = answer.generated.back()};
  }
  return {.step = answer.last_step, .slot = answer.last_slot};
}

void Scheduler::append(StepPlan& plan, MicrobatchPlan& microbatch, const Piece& piece) {
  const Request& request = requests_[piece.request];
  const RequestBlocks& blocks = pieces_.blocks(piece.request);
  const bool prompt = !pieces_.prefilled(piece.request);
  const int64_t first_position = blocks.n_positions;
  const auto first_row = static_cast<int32_t>(microbatch.tokens.size());
  if (prompt) {
    const auto first = request.prompt_ids.begin() + pieces_.n_prefilled(piece.request);
    std::transform(
        first, first + piece.n_rows, std::back_inserter(microbatch.tokens), [](int32_t id) {
          return TokenSource{.id = id};
        });
  } else {
    microbatch.tokens.push_back(newest_token(piece.request));
  }
  pieces_.place(piece);
  microbatch.sequences.push_back({.request = request.index,
                                  .first_row = first_row,
                                  .n_rows = static_cast<int32_t>(piece.n_rows),
                                  .first_position = first_position,
                                  .block_tables = blocks.tables,
                                  .owners = blocks.owners,
                                  .split = prompt && options_.cp > 1});
  const bool samples = pieces_.prefilled(piece.request);
  for (int64_t i = 0; i < piece.n_rows; ++i) {
    const bool last = i + 1 == piece.n_rows;
    if (!(samples && last) && !(prompt && options_.all_prompt_logits)) continue;
    microbatch.logits_rows.push_back({.row = static_cast<int32_t>(first_row + i),
                                      .request = request.index,
                                      .position = first_position + i,
                                      .sample = samples && last});
  }
  if (samples) {
    answers_[piece.request].last_step = plan.step;
    answers_[piece.request].last_slot = static_cast<int32_t>(slots_.back().size());
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
    const size_t request = slots[slot];
    Answer& answer = answers_[request];
    if (answer.stopped) continue;  // the token beyond the stop
    const bool stop = std::find(options_.stop_ids.begin(), options_.stop_ids.end(), ids[slot]) !=
                      options_.stop_ids.end();
    if (!stop) {
      answer.generated.push_back(ids[slot]);
      last_accepted_.emplace_back(request, ids[slot]);
    }
    answer.stopped =
        stop || static_cast<int64_t>(answer.generated.size()) == requests_[request].max_new_tokens;
    if (answer.stopped) pieces_.stop(request);
  }
}

}  // namespace testbed
