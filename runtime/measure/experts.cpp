// experts_of: which experts the tokens went to, what was read of them, and what ranks sent one
// another. docs/metrics.md, "Experts", states the formulas.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "kernels/base/check.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/base/routing.hpp"
#include "runtime/measure/breakdown.hpp"

namespace testbed {

namespace {

// The tokens that meet one set of experts together: those of the ranks between which tokens and
// experts travel, in one microbatch of one step.
struct PassKey {
  int32_t layer = 0;
  int32_t step = 0;
  int32_t microbatch = 0;
  int pool = 0;
  auto tie() const { return std::tie(layer, step, microbatch, pool); }
  bool operator<(const PassKey& other) const { return tie() < other.tie(); }
};
struct Pass {
  int64_t n_tokens = 0;
  std::vector<int64_t> tokens_per_expert;
};

// Neighbours in whole tp groups and whole expert groups; both divide a stage.
int pool_of(const Mesh& mesh, int rank) {
  const int size = std::lcm(mesh.tp, mesh.ep);
  CHECK(size > 0);
  return rank / size;
}

// A layer, over the passes of one repeat.
struct LayerSum {
  int64_t passes = 0;
  std::vector<int64_t> tokens_per_expert;
  int64_t touched = 0;
  double touched_uniform = 0.0;
  int64_t weight_bytes = 0;
};

void check_event(const RankTimeline& timeline,
                 const ExpertEvent& pass,
                 const ExpertsDescription& experts) {
  const int64_t pairs =
      std::accumulate(pass.tokens_per_expert.begin(), pass.tokens_per_expert.end(), int64_t{0});
  if (static_cast<int64_t>(pass.tokens_per_expert.size()) == experts.n_experts &&
      pairs == pass.n_tokens * experts.top_k) {
    return;
  }
  throw Error(ExitCode::internal_error,
              fmt::format("timeline of rank {}: layer {} routed {} tokens to {} places of {} "
                          "experts, not each to {} of {}",
                          timeline.rank,
                          pass.scope.layer,
                          pass.n_tokens,
                          pairs,
                          pass.tokens_per_expert.size(),
                          experts.top_k,
                          experts.n_experts));
}

void add_event(const ExpertEvent& event, Pass& pass) {
  pass.n_tokens += event.n_tokens;
  pass.tokens_per_expert.resize(event.tokens_per_expert.size());
  for (size_t e = 0; e < event.tokens_per_expert.size(); ++e) {
    pass.tokens_per_expert[e] += event.tokens_per_expert[e];
  }
}

void add_pass(const Pass& pass, const ExpertsDescription& experts, LayerSum& layer) {
  ++layer.passes;
  layer.tokens_per_expert.resize(pass.tokens_per_expert.size());
  for (size_t e = 0; e < pass.tokens_per_expert.size(); ++e) {
    layer.tokens_per_expert[e] += pass.tokens_per_expert[e];
    if (pass.tokens_per_expert[e] > 0) ++layer.touched;
  }
  layer.touched_uniform +=
      expected_experts(experts.n_experts, experts.top_k, static_cast<double>(pass.n_tokens));
}

std::map<int32_t, LayerSum> sums_of(const Breakdown& breakdown, Phase phase) {
  const ExpertsDescription& experts = breakdown.input.run.experts;
  const int32_t repeat = breakdown.repeats.front();
  std::map<PassKey, Pass> passes;
  for (int rank = 0; rank < breakdown.world_size(); ++rank) {
    const RankTimeline& timeline = breakdown.timeline(rank);
    const int pool = pool_of(breakdown.input.mesh, rank);
    for (const ExpertEvent& event : timeline.experts) {
      const Scope& scope = event.scope;
      if (!in_phase(scope, phase) || scope.repeat != repeat) continue;
      if (event.n_tokens == 0 || event.tokens_per_expert.empty()) continue;
      check_event(timeline, event, experts);
      add_event(event, passes[{scope.layer, scope.step, scope.microbatch, pool}]);
    }
  }
  std::map<int32_t, LayerSum> layers;
  for (const auto& [key, pass] : passes) add_pass(pass, experts, layers[key.layer]);
  for (int rank = 0; rank < breakdown.world_size(); ++rank) {
    for (const OpEvent& event : breakdown.timeline(rank).ops) {
      if (event.op.kind != OpKind::expert_linear || !in_phase(event.scope, phase) ||
          event.scope.repeat != repeat) {
        continue;
      }
      const auto layer = layers.find(event.scope.layer);
      if (layer != layers.end()) layer->second.weight_bytes += event.op.cost.weight_bytes;
    }
  }
  return layers;
}

ExpertLayerRecord record_of(int32_t index, LayerSum& sum) {
  ExpertLayerRecord layer{.layer = index, .passes = sum.passes};
  layer.touched = per(static_cast<double>(sum.touched), sum.passes);
  layer.touched_uniform = per(sum.touched_uniform, sum.passes);
  layer.touched_bytes = per_rounded(sum.weight_bytes, sum.passes);
  const auto& tokens = sum.tokens_per_expert;
  const int64_t pairs = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  const int64_t most = *std::max_element(tokens.begin(), tokens.end());
  layer.balance = per(per(static_cast<double>(pairs), static_cast<int64_t>(tokens.size())), most);
  layer.tokens_per_expert = std::move(sum.tokens_per_expert);
  return layer;
}

// [source][target], world ranks, of one repeat; empty if nothing was exchanged.
std::vector<std::vector<int64_t>> sent_between(const Breakdown& breakdown, Phase phase) {
  const auto world = static_cast<size_t>(breakdown.world_size());
  std::vector<std::vector<int64_t>> sent(world, std::vector<int64_t>(world));
  bool exchanged = false;
  for (size_t source = 0; source < world; ++source) {
    const std::vector<int> group = breakdown.input.mesh.group(static_cast<int>(source), Axis::ep);
    for (const ExpertEvent& pass : breakdown.timeline(static_cast<int>(source)).experts) {
      if (!in_phase(pass.scope, phase) || pass.scope.repeat != breakdown.repeats.front()) continue;
      if (pass.sent_bytes.empty()) continue;
      exchanged = true;
      for (size_t i = 0; i < group.size(); ++i) {
        sent[source][static_cast<size_t>(group[i])] += pass.sent_bytes.at(i);
      }
    }
  }
  if (!exchanged) sent.clear();
  return sent;
}

}  // namespace

std::optional<ExpertsRecord> experts_of(const Breakdown& breakdown, Phase phase) {
  std::map<int32_t, LayerSum> sums = sums_of(breakdown, phase);
  if (sums.empty()) return std::nullopt;
  const RunDescription& run = breakdown.input.run;
  ExpertsRecord experts{.n_experts = run.experts.n_experts,
                        .top_k = run.experts.top_k,
                        .exchange = run.parallel.expert_exchange};
  experts.per_layer.reserve(sums.size());
  for (auto& [index, sum] : sums) experts.per_layer.push_back(record_of(index, sum));
  experts.all_to_all_bytes = sent_between(breakdown, phase);
  return experts;
}

}  // namespace testbed
