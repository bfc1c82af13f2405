// Data corruption: one seeded generation several times over, on a tp group and on replicas that are
// given the same prompts. What must be alike is compared layer by layer, bit by bit, and the first
// rank, layer and collective that differ are named.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/hash.hpp"
#include "runtime/accept/divergence.hpp"
#include "runtime/accept/model_runs.hpp"
#include "runtime/accept/stage.hpp"
#include "runtime/commands/session.hpp"
#include "runtime/config/presets.hpp"

namespace testbed {
namespace {

constexpr const char* small_model = "smollm2-135m";
constexpr int64_t small_bytes = int64_t{1} << 30;  // of weights that every rank can hold whole
constexpr int requests_of_replica = 2;
constexpr int least_repeats = 3;  // two of which outvote one

enum class Kind : int64_t { group, replicas };

RunLength length_of(const AcceptConfig& config) {
  return config.quick ? RunLength::brief : RunLength::whole;
}

// Every rank the whole model by itself: of equal devices one that computes wrongly, each time in
// the same way, is found by the others.
SplitRun replicas_run(const AcceptConfig& accept, int world_size) {
  SplitRun run;
  const auto choose = [&](const std::string& name, std::optional<int64_t> layers) {
    ModelConfig model = read_model_config(locate_model(name));
    constexpr int64_t brief_layers = 4;
    int64_t n = std::min(layers.value_or(model.n_layers), model.n_layers);
    if (accept.quick) n = std::min(n, brief_layers);
    const bool is_cut = n < model.n_layers;
    if (is_cut) model = truncated_to(std::move(model), n);
    run.model = model.name + (is_cut ? fmt::format(" {} layers", n) : "");
    run.config.model = name;
    run.config.layers = n;
    run.weight_bytes = model.n_parameters() * dtype_bytes(model.stored_dtype, 1);
  };
  choose(accept.model, accept.layers);
  if (run.weight_bytes <= small_bytes) {
    run.config.weights = accept.weights;
  } else {
    choose(small_model, std::nullopt);
    run.instead = fmt::format("{} is too large for a whole one on every rank", accept.model);
  }
  run.config.parallel = {.dp = world_size};
  run.mesh = {.dp = world_size};
  run.split = fmt::format("dp {}", world_size);
  return run;
}

SplitRun run_of(const AcceptConfig& accept, Kind kind, int world_size) {
  SplitRun run = kind == Kind::replicas
                     ? replicas_run(accept, world_size)
                     : split_run(accept, Axis::tp, world_size, length_of(accept));
  RunConfig& config = run.config;
  config.layout = accept.layout;
  config.allow_shared_gpu = accept.allow_shared_gpu;
  config.compute_dtype = accept.compute_dtype;
  config.threads = accept.threads;
  config.timeout_s = accept.timeout_s;
  config.output.quiet = true;
  config.check = CheckMode::off;
  config.deterministic = true;  // else sums may differ without a fault
  config.warmup = 0;
  config.repeats = std::max(least_repeats, accept.quick ? least_repeats : accept.repeats);
  config.sampling = {.seed = accept.seed, .ignore_eos = true};
  config.workload = {.batch = int64_t{run.mesh.dp} * requests_of_replica,
                     .prompt_tokens = accept.quick ? 16 : 64,
                     .gen_tokens = accept.quick ? 4 : 16};
  return run;
}

// The same prompts for every replica.
void give_prompts(SplitRun& run, uint64_t seed) {
  const ModelConfig model = read_model_config(locate_model(run.config.model));
  WorkloadConfig& workload = run.config.workload;
  workload.prompt_ids.clear();
  workload.prompt_ids.reserve(static_cast<size_t>(workload.batch));
  for (int64_t request = 0; request < workload.batch; ++request) {
    std::vector<int32_t>& ids = workload.prompt_ids.emplace_back();
    ids.reserve(static_cast<size_t>(workload.prompt_tokens));
    const auto of_replica = static_cast<uint64_t>(request % requests_of_replica);
    for (int64_t i = 0; i < workload.prompt_tokens; ++i) {
      const uint64_t draw = mix64(mix64(seed ^ (of_replica << 32U)) ^ static_cast<uint64_t>(i));
      ids.push_back(static_cast<int32_t>(draw % static_cast<uint64_t>(model.vocab_size)));
    }
  }
}

std::string explanation_of(const SplitRun& run) {
  if (run.skip) return "Not run: " + *run.skip + ".";
  const WorkloadConfig& work = run.config.workload;
  std::string text = fmt::format(
      "{}: {} generations of one seed, {} prompts of {} tokens and {} generated tokens on each of "
      "{} replicas alike. Of every layer each rank hashes what it has computed by itself before "
      "it is summed, and the residual after the sum. The first must be alike in all repeats and on "
      "the same tp rank of all replicas, the second on all ranks. The first difference, and who is "
      "in the minority, names the device or the all-reduce.",
      run.text(),
      run.config.repeats,
      requests_of_replica,
      work.prompt_tokens,
      work.gen_tokens,
      run.mesh.dp);
  if (run.instead) text += " It stands in for the configured model: " + *run.instead + ".";
  return text;
}

PlannedCase plan_case(const AcceptConfig& config, Kind kind, int world_size) {
  const SplitRun run = run_of(config, kind, world_size);
  const double estimated_s = run.skip ? 0.0 : estimated_seconds(run, world_size);
  return {.stage = "corruption",
          .name = fmt::format("same seed {}", run.text()),
          .explanation = explanation_of(run),
          .estimated_s = estimated_s,
          .deadline_s = config.timeout_s + 20.0 * estimated_s,
          .skip = run.skip,
          .numbers = {{"kind", static_cast<int64_t>(kind)}}};
}

// What every rank has marked, on rank 0.
class Marks {
 public:
  Marks(const AcceptContext& context, const SplitRun& run) : context_(context) {
    runs_.mesh = run.mesh;
  }

  void add_devices(const RankContext& rank) {
    // Threads decide how sums are cut, and descriptions name them.
    for (const Bytes& bytes : context_.control.gather(pack_text(rank.device.description()), 0))
      runs_.devices.push_back(unpack_text(bytes));
  }

  void add_repeat(const std::vector<ResidualMark>& mine) {
    ByteWriter out;
    out.put(mine);
    const std::vector<Bytes> all = context_.control.gather(out.take(), 0);
    if (context_.rank != 0) return;
    if (runs_.places.empty()) runs_.places = mine;
    std::vector<std::vector<uint64_t>>& repeat = runs_.hashes.emplace_back();
    repeat.reserve(all.size());
    for (size_t rank = 0; rank < all.size(); ++rank)
      repeat.push_back(hashes_of(all[rank], static_cast<int>(rank)));
  }

  // Rank 0.
  void judge(CaseResult& result) const {
    result.notes.push_back(fmt::format("{} fingerprints of each of {} ranks in {} generations",
                                       runs_.places.size(),
                                       context_.size,
                                       runs_.hashes.size()));
    const std::set<std::string> kinds(runs_.devices.begin(), runs_.devices.end());
    if (kinds.size() > 1) {
      result.notes.push_back(fmt::format(
          "{} kinds of devices: replicas are compared with those like them", kinds.size()));
    }
    std::optional<Divergence> found = other_steps_;
    if (!found) found = first_divergence(runs_);
    if (!found) return;
    result.status = CaseStatus::failed;
    result.corrupt = true;
    result.reason = found->reason;
    for (Blame& blame : found->blamed) {
      blame.host = context_.hosts[static_cast<size_t>(blame.ranks.front())];
      result.blamed.push_back(std::move(blame));
    }
  }

 private:
  // Steps follow from the plans, which are alike: a rank that did others has lost its way.
  std::vector<uint64_t> hashes_of(const Bytes& bytes, int rank) {
    std::vector<ResidualMark> marks;
    ByteReader(bytes).get(marks);
    const bool same_places =
        std::equal(marks.begin(),
                   marks.end(),
                   runs_.places.begin(),
                   runs_.places.end(),
                   [](const ResidualMark& a, const ResidualMark& b) { return a.same_place(b); });
    if (!same_places && !other_steps_) {
      const std::string what = fmt::format("went through other layers or steps than rank 0");
      other_steps_ = {
          .reason = fmt::format("rank {} {}", rank, what),
          .blamed = {{.kind = Blame::Kind::rank, .ranks = {rank}, .host = {}, .what = what}}};
    }
    marks.resize(runs_.places.size());
    std::vector<uint64_t> hashes;
    hashes.reserve(marks.size());
    for (const ResidualMark& mark : marks) hashes.push_back(mark.hash);
    return hashes;
  }

  const AcceptContext& context_;
  MarkedRuns runs_;
  std::optional<Divergence> other_steps_;
};

class CorruptionStage final : public Stage {
 public:
  std::string_view name() const override { return "corruption"; }

  std::vector<PlannedCase> plan(const AcceptPlanInput& input) const override {
    const auto world_size = static_cast<int>(input.hosts.size());
    std::vector<PlannedCase> cases;
    if (world_size > 1) cases.push_back(plan_case(input.config, Kind::group, world_size));
    cases.push_back(plan_case(input.config, Kind::replicas, world_size));
    return cases;
  }

  CaseResult run(const AcceptContext& context, const PlannedCase& planned) override {
    CaseResult result{.stage = planned.stage, .name = planned.name};
    SplitRun run =
        run_of(context.config, static_cast<Kind>(planned.numbers.at("kind")), context.size);
    give_prompts(run, context.config.seed);
    if (run.instead) result.notes.push_back("stands in for the configured model: " + *run.instead);
    carry_out(context, run.config, result, [&](const RankContext& rank) {
      Session session(rank);
      Marks marks(context, run);
      marks.add_devices(rank);
      for (int repeat = 0; repeat < run.config.repeats; ++repeat)
        marks.add_repeat(session.generate_marks());
      if (context.rank == 0) marks.judge(result);
    });
    return result;
  }
};

}  // namespace

std::unique_ptr<Stage> make_corruption_stage() { return std::make_unique<CorruptionStage>(); }

}  // namespace testbed
