#include "runtime/accept/model_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/errors.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/split.hpp"
#include "runtime/serving/check.hpp"

namespace testbed {
namespace {

constexpr int64_t brief_layers = 4;
constexpr int64_t most_brief_bytes = int64_t{1}
                                     << 30;  // of a preset that stands in: they are drawn
constexpr int64_t least_layers = 2;          // of a preset that stands in
constexpr int replica_requests = 4;          // at least
constexpr int64_t tokens_per_cp_rank = 32;   // of a prompt: a block for either half of the zigzag

// A model and how much of it may run.
struct Candidate {
  std::string model;  // RunConfig::model
  ModelConfig config;
  bool is_configured = true;
};

// The degrees of the whole job, dp being the rest. Experts go to the ranks that share everything
// else too where that is legal: no rank then holds what another has; else to replicas.
std::vector<ParallelConfig> parallels(Axis axis, int degree, int world_size) {
  const int rest = world_size / degree;
  switch (axis) {
    case Axis::tp:
      return {{.tp = degree, .dp = rest}};
    case Axis::pp:
      return {{.pp = degree, .dp = rest}};
    case Axis::cp:
      return {{.cp = degree, .dp = rest}};
    default:
      return {
          {.tp = degree, .dp = rest, .ep = degree, .expert_exchange = ExpertExchange::all_to_all},
          {.dp = world_size, .ep = degree, .expert_exchange = ExpertExchange::all_to_all}};
  }
}

struct Split {
  ParallelConfig parallel;
  Mesh mesh;
};

// Of this degree, or why there is none.
std::variant<Split, std::string> split_of_degree(const ModelConfig& model,
                                                 Axis axis,
                                                 int degree,
                                                 int world_size) {
  std::string reason;
  for (const ParallelConfig& parallel : parallels(axis, degree, world_size)) {
    const Mesh mesh = resolve_mesh(parallel, world_size);
    const std::optional<std::string> illegal = why_illegal(model, mesh, parallel, 1);
    if (!illegal) return Split{parallel, mesh};
    reason = *illegal;
  }
  return reason;
}

// The largest degree above 1, or why the job's size is none.
std::variant<Split, std::string> largest_split(const ModelConfig& model,
                                               Axis axis,
                                               int world_size) {
  for (int degree = world_size; degree > 1; --degree) {
    if (world_size % degree != 0) continue;
    auto split = split_of_degree(model, axis, degree, world_size);
    if (std::holds_alternative<Split>(split)) return split;
  }
  return split_of_degree(model, axis, world_size, world_size);
}

bool has_expert_layer(const ModelConfig& model) {
  for (int64_t i = 0; i < model.n_layers; ++i) {
    if (model.layer(i).has_experts) return true;
  }
  return false;
}

// The first layers, as few as n or as it takes to have experts if the model has some.
ModelConfig first_layers(const ModelConfig& model, int64_t n) {
  for (int64_t layers = std::min(n, model.n_layers); layers < model.n_layers; ++layers) {
    ModelConfig cut = truncated_to(model, layers);
    if (!model.moe || has_expert_layer(cut)) return cut;
  }
  return model;
}

// Presets, cut to their first layers, by their size then.
std::vector<Candidate> stand_ins(Axis axis, int world_size) {
  std::vector<Candidate> candidates;
  for (const std::string& name : preset_names("models")) {
    ModelConfig model = read_model_config(locate_model(name));
    if ((axis == Axis::ep) != model.moe.has_value()) continue;
    model = first_layers(model,
                         axis == Axis::ep   ? 1
                         : axis == Axis::pp ? world_size
                                            : least_layers);
    candidates.push_back({name, std::move(model), false});
  }
  std::stable_sort(
      candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
        return a.config.n_parameters() < b.config.n_parameters();
      });
  return candidates;
}

struct Choice {
  Candidate candidate;
  Split split;
};

// Of the stand-ins the one with the largest degree, of those the smallest.
std::optional<Choice> best_stand_in(Axis axis, int world_size) {
  std::optional<Choice> best;
  for (Candidate& candidate : stand_ins(axis, world_size)) {
    const auto split = largest_split(candidate.config, axis, world_size);
    if (!std::holds_alternative<Split>(split)) continue;
    const Split& found = std::get<Split>(split);
    if (best && best->split.mesh.degree(axis) >= found.mesh.degree(axis)) continue;
    best = {std::move(candidate), found};
  }
  return best;
}

WorkloadConfig workload_of(const Mesh& mesh, const ModelConfig& model, RunLength length) {
  const bool brief = length == RunLength::brief;
  WorkloadConfig workload;
  workload.batch = int64_t{mesh.dp} * std::max(replica_requests, mesh.pp);
  workload.gen_tokens = brief ? 8 : 32;
  workload.prompt_tokens = std::max<int64_t>(brief ? 64 : 512, tokens_per_cp_rank * mesh.cp);
  workload.prompt_tokens =
      std::min(workload.prompt_tokens, model.max_positions - workload.gen_tokens);
  return workload;
}

RunConfig run_config(const AcceptConfig& accept, const Choice& choice, RunLength length) {
  RunConfig run;
  const Candidate& model = choice.candidate;
  run.model = model.model;
  run.weights = model.is_configured ? accept.weights : std::nullopt;
  run.layers = model.config.n_layers;
  run.parallel = choice.split.parallel;
  run.layout = accept.layout;
  run.allow_shared_gpu = accept.allow_shared_gpu;
  run.workload = workload_of(choice.split.mesh, model.config, length);
  run.compute_dtype = accept.compute_dtype;
  run.sampling.seed = accept.seed;
  run.warmup = 1;
  run.repeats = accept.repeats;
  // The sharded computation against one rank: what a wrong value would show in.
  run.check = accept.quick ? CheckMode::off : CheckMode::layers;
  run.output.quiet = true;
  run.timeout_s = accept.timeout_s;
  run.threads = accept.threads;
  run.cuda_graphs = accept.inject.empty();  // a graph would leave faults out
  return run;
}

std::string split_text(Axis axis, const Mesh& mesh, RunLength length) {
  std::string text = fmt::format("{} {}", axis_name(axis), mesh.degree(axis));
  if (axis == Axis::ep && mesh.tp > 1) text = fmt::format("tp {} {}", mesh.tp, text);
  if (mesh.dp > 1) text += fmt::format(" dp {}", mesh.dp);
  if (length == RunLength::brief) text += " brief";
  return text;
}

ModelConfig configured_model(const AcceptConfig& accept) {
  ModelConfig model = read_model_config(locate_model(accept.model));
  return accept.layers ? truncated_to(std::move(model), *accept.layers) : model;
}

SplitRun skipped(const ModelConfig& model, Axis axis, int world_size, std::string reason) {
  SplitRun run;
  run.model = model.name;
  run.split = fmt::format("{} {}", axis_name(axis), world_size);
  run.skip = std::move(reason);
  return run;
}

SplitRun made(const AcceptConfig& accept, const Choice& choice, Axis axis, RunLength length) {
  const ModelConfig& model = choice.candidate.config;
  SplitRun run;
  run.config = run_config(accept, choice, length);
  run.mesh = choice.split.mesh;
  run.model = model.name;
  if (model.n_layers < read_model_config(locate_model(choice.candidate.model)).n_layers) {
    run.model += fmt::format(" {} layer{}", model.n_layers, model.n_layers == 1 ? "" : "s");
  }
  run.split = split_text(axis, run.mesh, length);
  run.weight_bytes = model.n_parameters() * dtype_bytes(model.stored_dtype, 1);
  return run;
}

}  // namespace

SplitRun split_run(const AcceptConfig& accept, Axis axis, int world_size, RunLength length) {
  const ModelConfig model = configured_model(accept);
  if (world_size == 1) {
    return skipped(model, axis, world_size, "one rank: there is nothing to split");
  }
  const auto split = largest_split(model, axis, world_size);
  if (std::holds_alternative<Split>(split)) {
    Choice choice{{accept.model, model, true}, std::get<Split>(split)};
    const int64_t layers = std::max<int64_t>(brief_layers, choice.split.mesh.pp);
    if (length == RunLength::brief) choice.candidate.config = first_layers(model, layers);
    return made(accept, choice, axis, length);
  }
  std::string reason = fmt::format("{}: {}", model.name, std::get<std::string>(split));
  const std::optional<Choice> stand_in = best_stand_in(axis, world_size);
  if (!stand_in) {
    return skipped(model, axis, world_size, reason + "; no preset can be split so");
  }
  SplitRun run = made(accept, *stand_in, axis, length);
  if (length == RunLength::brief && run.weight_bytes > most_brief_bytes) {
    run.skip = fmt::format(
        "{}; {}, the smallest preset that can be split so, has {:.1f} GB of weights: "
        "not with --quick",
        reason,
        run.model,
        static_cast<double>(run.weight_bytes) * 1e-9);
  }
  run.instead = std::move(reason);
  return run;
}

double estimated_seconds(const SplitRun& run, int world_size) {
  // Of a host's processors, two cores: weights are drawn and laid out at 0.4 GB/s, read at 5; a
  // step costs a few ms whatever it reads, more for more ranks that share the cores. A GPU is
  // faster than that by far.
  const double bytes = static_cast<double>(run.weight_bytes) * run.mesh.dp * run.mesh.cp;
  const double n_generations = run.config.warmup + 2.0 * run.config.repeats;
  const auto n_steps = static_cast<double>(run.config.workload.gen_tokens);
  const double step_s = bytes / 5e9 + 1e-3 * world_size * static_cast<double>(*run.config.layers);
  return 1.0 + bytes / 4e8 + n_generations * 1.5 * n_steps * step_s;
}

void carry_out(const AcceptContext& context,
               RunConfig config,
               CaseResult& result,
               const std::function<void(const RankContext&)>& part) {
  config.device = context.device.kind() == "cuda" ? DeviceChoice::cuda : DeviceChoice::cpu;
  bool has_begun = false;
  try {
    context.with_rank(config, [&](const RankContext& rank) {
      has_begun = true;
      part(rank);
    });
  } catch (const ConfigError& e) {
    if (has_begun) throw;
    result.status = CaseStatus::skipped;
    result.reason = e.what();
  } catch (const Error& e) {
    if (std::string_view(e.what()).find(failed_check) == std::string_view::npos) throw;
    result.status = CaseStatus::failed;
    result.corrupt = true;
    result.reason = e.what();
  }
}

double time_tolerance(const AcceptContext& context) {
  const double of_profile = context.profile.cohort_tolerance;
  return context.device.kind() == "cpu" ? std::max(of_profile, 0.5) : of_profile;
}

}  // namespace testbed
