// Stage soak: decoding and all-reduces whose values are checked, in turns, for as long as was
// asked.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/clock.hpp"
#include "runtime/accept/case_failure.hpp"
#include "runtime/accept/collective_trial.hpp"
#include "runtime/accept/decode_figures.hpp"
#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/accept/model_runs.hpp"
#include "runtime/accept/rank_values.hpp"
#include "runtime/accept/soak.hpp"
#include "runtime/accept/stage.hpp"
#include "runtime/accept/wrong_call_bytes.hpp"
#include "runtime/commands/session.hpp"
#include "runtime/measure/statistics.hpp"

namespace testbed {
namespace {

constexpr size_t most_samples = 64;  // that the verdict keeps of a soak

// The split that loads the links most, of those that the job's size allows.
SplitRun soak_run(const AcceptConfig& config, int world_size) {
  const RunLength length = config.quick ? RunLength::brief : RunLength::whole;
  SplitRun run = split_run(config, Axis::tp, world_size, length);
  for (const Axis axis : {Axis::pp, Axis::cp}) {
    if (run.skip) run = split_run(config, axis, world_size, length);
  }
  return run;
}

PlannedCase plan_soak(const AcceptPlanInput& input) {
  const AcceptConfig& config = input.config;
  PlannedCase planned{.stage = "soak", .name = "soak", .skip = std::nullopt};
  if (config.soak_s <= 0.0) {
    planned.skip = "no --soak";
    planned.explanation = "Not run: no --soak.";
    return planned;
  }
  const SplitRun run = soak_run(config, static_cast<int>(input.hosts.size()));
  planned.skip = run.skip;
  planned.name = run.text();
  if (run.skip) {
    planned.explanation = "Not run: " + *run.skip + ".";
    return planned;
  }
  planned.explanation = fmt::format(
      "{}: for {:.0f} s generations and all-reduces over all ranks in turns. Every value of the "
      "all-reduces is checked. {} It is not repeated if it fails.",
      run.text(),
      config.soak_s,
      input.profile.device == "cuda"
          ? "A decode step of the last third of the time may not be slower than of the first "
            "beyond their spread; generations with other tokens than the first are counted and "
            "not judged, as NCCL may sum in another order."
          : "Every generated token is checked; whether a decode step of the last third of the time "
            "is slower than of the first is only said, as others may use the processors.");
  planned.once = true;
  const double start_s = estimated_seconds(run, static_cast<int>(input.hosts.size()));
  planned.estimated_s = config.soak_s + start_s;
  planned.deadline_s = config.soak_s + config.timeout_s + 20.0 * start_s;
  planned.measures = {model_key("soak.step_ms", run.model, run.split)};
  return planned;
}

// All-reduces of checked values over all ranks, one after the other in growing sizes.
class CheckedAllReduces {
 public:
  CheckedAllReduces(const AcceptContext& context, Device& device)
      : group_(context.make_group(all_ranks(context.size), Axis::world)),
        values_(DType::F32, context.size, /*summed=*/true, context.config.seed),
        trial_(device, *group_, CommOp::all_reduce, values_, sizes.back()) {}

  void once() {
    const int64_t n_bytes = sizes[static_cast<size_t>(n_calls_) % sizes.size()];
    trial_.prepare(payload_elements(n_bytes, DType::F32, group_->size()), n_calls_, 1);
    trial_.call();
    trial_.check();
    ++n_calls_;
  }
  int64_t n_calls() const { return n_calls_; }

  // All ranks call it; what came out wrong, on rank 0.
  WrongValues wrong(ControlChannel& control) const {
    WrongValues all{.op = CommOp::all_reduce,
                    .ranks = group_->group().world_ranks,
                    .by_rank = {},
                    .n_calls = {}};
    ByteWriter out;
    put_calls(out, trial_.wrong_calls());
    for (const Bytes& bytes : control.gather(out.take(), 0)) {
      ByteReader in(bytes);
      all.by_rank.push_back(get_calls(in));
      all.n_calls.push_back(n_calls_);
    }
    return all;
  }
  const CollectiveValues& values() const { return values_; }

 private:
  // Of what one message does, and of what is cut into parts.
  static constexpr std::array<int64_t, 3> sizes = {8 << 10, 256 << 10, 4 << 20};

  std::unique_ptr<Communicator> group_;
  CollectiveValues values_;
  CollectiveTrial trial_;
  int64_t n_calls_ = 0;
};

// What rank 0 knows when the time is up, and what every rank has counted.
struct SoakResult {
  std::vector<double> step_ms;  // [generation] median of its decode steps
  int64_t n_generations = 0;
  int64_t n_other_tokens = 0;  // generations whose tokens were not the first one's
  int64_t n_all_reduces = 0;
  int64_t n_wrong_all_reduces = 0;  // of all ranks together, at least
  std::optional<CollectiveBlame> blame;
};

// Rank 0 looks at its clock for all: they end together.
bool goes_on(ControlChannel& control, int64_t end_ns) {
  return value_of_root(control, now_ns() < end_ns);
}

int64_t sum_over_ranks(ControlChannel& control, int64_t mine) {
  ByteWriter out;
  out.put(mine);
  int64_t sum = 0;
  for (const Bytes& bytes : control.gather(out.take(), 0)) {
    int64_t of_rank = 0;
    ByteReader(bytes).get(of_rank);
    sum += of_rank;
  }
  return sum;
}

// All ranks call it.
SoakResult soak(const AcceptContext& context, const RankContext& rank) {
  CheckedAllReduces all_reduces(context, rank.device);
  Session session(rank);
  const GenerationResult first = session.generate_once(nullptr, 0, {});

  SoakResult result;
  int64_t n_other_tokens = 0;
  const int64_t end_ns = now_ns() + static_cast<int64_t>(context.config.soak_s * 1e9);
  while (goes_on(context.control, end_ns)) {
    const GenerationResult again = session.generate_once(nullptr, 0, {});
    ++result.n_generations;
    if (again.generated != first.generated) ++n_other_tokens;
    result.step_ms.push_back(decode_step_ms(again.timing));
    all_reduces.once();
  }
  result.n_other_tokens = sum_over_ranks(context.control, n_other_tokens);
  result.n_all_reduces = all_reduces.n_calls();
  const WrongValues wrong = all_reduces.wrong(context.control);
  for (const std::vector<WrongCall>& calls : wrong.by_rank) {
    result.n_wrong_all_reduces += static_cast<int64_t>(calls.size());
  }
  if (result.n_wrong_all_reduces > 0) result.blame = blame_for(wrong, all_reduces.values());
  return result;
}

std::string drift_text(const StepDrift& drift) {
  return fmt::format(
      "a decode step took {:.3g} ms in the first third of the time and {:.3g} ms in "
      "the last ({:+.0f} %)",
      drift.first_ms,
      drift.last_ms,
      100.0 * drift.change);
}

// The sums of a cpu group are in rank order, so that equal requests give equal tokens; NVLS adds in
// an order of its own.
void judge_tokens(const SoakResult& soak, bool exact, CaseResult& result) {
  if (soak.n_other_tokens == 0) return;
  std::string text = fmt::format("{} of {} generations gave other tokens than the first",
                                 soak.n_other_tokens,
                                 soak.n_generations);
  if (!exact) {
    result.notes.push_back(std::move(text));
    return;
  }
  result.corrupt = true;
  fail(result, text);
}

void judge_soak(const AcceptContext& context,
                const SplitRun& run,
                const SoakResult& soak,
                CaseResult& result) {
  if (!soak.step_ms.empty()) {
    FigureKey key = model_key("soak.step_ms", run.model, run.split);
    result.figures.push_back(
        judged(context.profile, std::move(key), condensed(soak.step_ms, most_samples)));
  }
  judge(result);
  if (soak.blame) {
    result.corrupt = true;
    result.blamed = soak.blame->blamed;
    for (Blame& blame : result.blamed) {
      if (blame.ranks.empty()) continue;
      blame.host = context.hosts[static_cast<size_t>(blame.ranks.front())];
    }
    fail(result, soak.blame->reason);
  }
  judge_tokens(soak, context.device.kind() == "cpu", result);
  result.notes.push_back(
      fmt::format("{} generations and {} all-reduces of checked values, {} wrong",
                  soak.n_generations,
                  soak.n_all_reduces,
                  soak.n_wrong_all_reduces));
  const std::optional<StepDrift> drift = step_drift(soak.step_ms, time_tolerance(context));
  if (!drift) {
    result.notes.emplace_back("too short for a drift: fewer than nine generations");
    return;
  }
  result.notes.push_back(drift_text(*drift));
  // What else runs on a host's processors comes and goes.
  if (drift->beyond_spread && context.device.kind() != "cpu") fail(result, drift_text(*drift));
}

class SoakStage final : public Stage {
 public:
  std::string_view name() const override { return "soak"; }
  std::vector<PlannedCase> plan(const AcceptPlanInput& input) const override {
    return {plan_soak(input)};
  }
  CaseResult run(const AcceptContext& context, const PlannedCase& planned) override {
    const SplitRun run = soak_run(context.config, context.size);
    CaseResult result{.stage = planned.stage, .name = planned.name};
    std::optional<SoakResult> soaked;
    carry_out(context, run.config, result, [&](const RankContext& rank) {
      soaked = soak(context, rank);
    });
    if (soaked && context.rank == 0) judge_soak(context, run, *soaked, result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Stage> make_soak_stage() { return std::make_unique<SoakStage>(); }

}  // namespace testbed
