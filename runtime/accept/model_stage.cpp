// Stage model: prefill and decode of a model in every split, what a decode step's time went into on
// every device, who holds the others up, and how much of the all-reduces a step waits for.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "runtime/accept/decode_figures.hpp"
#include "runtime/accept/exposure_run.hpp"
#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/accept/model_runs.hpp"
#include "runtime/accept/stage.hpp"
#include "runtime/accept/straggler.hpp"
#include "runtime/commands/run.hpp"
#include "runtime/measure/analysis.hpp"

namespace testbed {
namespace {

constexpr std::array split_axes = {Axis::tp, Axis::pp, Axis::cp, Axis::ep};
constexpr const char* exposure = "exposure";

RunLength length_of(const AcceptConfig& config) {
  return config.quick ? RunLength::brief : RunLength::whole;
}

// Several times what it should take on cores that are shared with others: a deadline is for what
// hangs.
double deadline_s(const AcceptConfig& config, double estimated_s) {
  return config.timeout_s + 20.0 * estimated_s;
}

std::string explain_split(const SplitRun& run, Axis axis) {
  if (run.skip) return "Not run: " + *run.skip + ".";
  const WorkloadConfig& work = run.config.workload;
  std::string text = fmt::format(
      "{}: {} requests of {} prompt tokens, {} generated tokens each, over {} ranks of a {} group. "
      "Measured: TTFT, TPOT, requests per second within both targets, and of each device while "
      "decoding the rate at which it reads weights and the time a step stands still for "
      "communication. Each is held against the profile where it has a figure for this model and "
      "split. A rank whose own time is out of line with its peers' in every repeat is named.",
      run.text(),
      work.batch,
      work.prompt_tokens,
      work.gen_tokens,
      run.mesh.degree(axis),
      axis_name(axis));
  if (run.instead) text += " It stands in for the configured model: " + *run.instead + ".";
  return text;
}

FigureKey key_of(std::string_view figure, const SplitRun& run) {
  return model_key(figure, run.model, run.split);
}

PlannedCase plan_split(const AcceptPlanInput& input, Axis axis, int world_size) {
  const SplitRun run = split_run(input.config, axis, world_size, length_of(input.config));
  const double estimated_s = run.skip ? 0.0 : estimated_seconds(run, world_size);
  return {.stage = "model",
          .name = run.text(),
          .explanation = explain_split(run, axis),
          .estimated_s = estimated_s,
          .deadline_s = deadline_s(input.config, estimated_s),
          .skip = run.skip,
          .measures = {key_of("model.ttft_ms", run),
                       key_of("model.tpot_ms", run),
                       key_of("model.goodput_per_s", run),
                       key_of("model.weight_read_gb_s", run),
                       key_of("model.exposed_comm_ms", run)},
          .numbers = {{"axis", static_cast<int64_t>(axis)}}};
}

ExposureOptions exposure_options(const AcceptConfig& config) {
  const int rounds = config.quick ? 3 : 5;
  return {.rounds = rounds, .most_rounds = 4 * rounds};
}

PlannedCase plan_exposure(const AcceptPlanInput& input, int world_size) {
  const SplitRun run = split_run(input.config, Axis::tp, world_size, RunLength::brief);
  const ExposureOptions options = exposure_options(input.config);
  const double before_s = run.skip ? 0.0 : estimated_seconds(run, world_size);
  constexpr double round_s = 1.0;
  return {.stage = "model",
          .name = fmt::format("exposed fraction of {}", run.text()),
          .explanation =
              run.skip ? "Not run: " + *run.skip + "."
                       : fmt::format("{}: delays of four lengths, in turns, before each all-reduce "
                                     "on all ranks alike. The slope of a decode step's time over "
                                     "the delay that was added to it is the fraction of an "
                                     "all-reduce that a step waits for; beside it the same by the "
                                     "breakdown of an undelayed run. {} rounds, up to {} while the "
                                     "interval is wider than {}.",
                                     run.text(),
                                     options.rounds,
                                     options.most_rounds,
                                     options.width),
          .estimated_s = run.skip ? 0.0 : before_s + options.rounds * round_s,
          .deadline_s = deadline_s(input.config, before_s + options.most_rounds * round_s),
          .skip = run.skip,
          .measures = {key_of("model.exposed_fraction", run)},
          .texts = {{"what", exposure}}};
}

void add_figure(CaseResult& result,
                const AcceptanceProfile& profile,
                FigureKey key,
                const std::vector<double>& samples,
                std::vector<int> ranks = {}) {
  if (samples.empty()) return;
  result.figures.push_back(judged(profile, std::move(key), samples, std::move(ranks)));
}

void add_figures(const AcceptContext& context,
                 const SplitRun& run,
                 const RunOutcome& outcome,
                 CaseResult& result) {
  const AcceptanceProfile& profile = context.profile;
  const TimingRecord& timing = outcome.record.timing;
  add_figure(result, profile, key_of("model.ttft_ms", run), timing.ttft_ms.repeats);
  add_figure(result, profile, key_of("model.tpot_ms", run), timing.tpot_ms.repeats);
  add_figure(
      result,
      profile,
      key_of("model.goodput_per_s", run),
      goodput_per_s(outcome.record, context.config.ttft_target_ms, context.config.tpot_target_ms));
  for (const DecodeSplit& split : decode_splits(outcome.timelines, run.mesh)) {
    add_figure(result,
               profile,
               key_of("model.weight_read_gb_s", run),
               split.weight_read_gb_s,
               {split.rank});
    add_figure(
        result, profile, key_of("model.exposed_comm_ms", run), split.exposed_comm_ms, {split.rank});
  }
}

void name_stragglers(const AcceptContext& context, const RunOutcome& outcome, CaseResult& result) {
  result.blamed = stragglers(outcome.timelines, time_tolerance(context));
  if (result.blamed.empty()) return;
  const Blame& first = result.blamed.front();
  if (result.status == CaseStatus::passed) {
    result.status = CaseStatus::failed;
    result.reason = fmt::format("rank {} on {} {}", first.ranks.front(), first.host, first.what);
  }
}

void add_notes(const SplitRun& run, const RunRecord& record, CaseResult& result) {
  if (run.instead) result.notes.push_back("stands in for the configured model: " + *run.instead);
  result.notes.push_back(wall_sentence(record));
  for (const std::string& label : record.run.labels) result.notes.push_back(label);
}

CaseResult run_split(const AcceptContext& context, const PlannedCase& planned) {
  const auto axis = static_cast<Axis>(planned.numbers.at("axis"));
  const SplitRun run = split_run(context.config, axis, context.size, length_of(context.config));
  CaseResult result{.stage = planned.stage, .name = planned.name};
  std::optional<RunOutcome> outcome;
  carry_out(
      context, run.config, result, [&](const RankContext& rank) { outcome = run_rank(rank); });
  if (!outcome) return result;
  add_figures(context, run, *outcome, result);
  judge(result);
  name_stragglers(context, *outcome, result);
  add_notes(run, outcome->record, result);
  return result;
}

// All-reduces of a tp group in a decode step, as rank 0 did them.
double all_reduces_per_step(const RankTimeline& timeline) {
  int64_t n_steps = 0;
  for (const StepEvent& step : timeline.steps) n_steps += step.phase == Phase::decode ? 1 : 0;
  int64_t n = 0;
  for (const CommEvent& event : timeline.comms) {
    const bool counts = event.comm.op == CommOp::all_reduce && event.comm.axis == Axis::tp &&
                        event.scope.step >= 0 && event.scope.phase == Phase::decode;
    n += counts ? 1 : 0;
  }
  return n_steps == 0 ? 0.0 : static_cast<double>(n) / static_cast<double>(n_steps);
}

std::string exposure_note(const ExposureRun& run,
                          const ExposedFraction& slope,
                          const std::optional<double>& by_breakdown) {
  std::string text = fmt::format(
      "exposed fraction of all-reduces by injection: {:.2f} ({:.0f} % interval {:.2f} to {:.2f}), "
      "from {} generations with {} us before each of {:.3g} all-reduces a step",
      slope.value,
      100.0 * ExposedFraction::confidence,
      slope.low,
      slope.high,
      run.steps.size(),
      fmt::join(run.delays_us, ", "),
      run.all_reduces_per_step);
  if (!by_breakdown) return text;
  const bool agree = slope.low <= *by_breakdown && *by_breakdown <= slope.high;
  return text + fmt::format("; by the breakdown: {:.2f}, {} the interval",
                            *by_breakdown,
                            agree ? "within" : "outside");
}

CaseResult run_exposure(const AcceptContext& context, const PlannedCase& planned) {
  const SplitRun split = split_run(context.config, Axis::tp, context.size, RunLength::brief);
  RunConfig config = split.config;
  config.repeats = 1;
  config.check = CheckMode::off;
  config.cuda_graphs = false;  // a graph would leave the host's delays out
  const ExposureOptions options = exposure_options(context.config);
  CaseResult result{.stage = planned.stage, .name = planned.name};
  std::optional<RunOutcome> outcome;
  ExposureRun run;
  carry_out(context, config, result, [&](const RankContext& rank) {
    outcome = run_rank(rank);
    run = run_with_delays(
        rank, outcome ? all_reduces_per_step(outcome->timelines.front()) : 1.0, options);
  });
  if (!outcome) return result;
  const std::optional<ExposedFraction> slope = exposed_fraction(run.steps);
  const std::optional<double> by_breakdown =
      exposed_in_breakdown(outcome->timelines, split.mesh, Phase::decode);
  add_figure(result, context.profile, key_of("model.exposed_fraction", split), {slope->value});
  result.notes.push_back(exposure_note(run, *slope, by_breakdown));
  for (const std::string& label : outcome->record.run.labels) result.notes.push_back(label);
  judge(result);
  return result;
}

class ModelStage final : public Stage {
 public:
  std::string_view name() const override { return "model"; }
  std::vector<PlannedCase> plan(const AcceptPlanInput& input) const override {
    const int world_size = static_cast<int>(input.hosts.size());
    std::vector<PlannedCase> cases;
    cases.reserve(split_axes.size() + 1);
    for (const Axis axis : split_axes) cases.push_back(plan_split(input, axis, world_size));
    cases.push_back(plan_exposure(input, world_size));
    return cases;
  }
  CaseResult run(const AcceptContext& context, const PlannedCase& planned) override {
    return planned.texts.contains("what") ? run_exposure(context, planned)
                                          : run_split(context, planned);
  }
};

}  // namespace

std::unique_ptr<Stage> make_model_stage() { return std::make_unique<ModelStage>(); }

}  // namespace testbed
