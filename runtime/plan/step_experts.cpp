// The ops of runtime/model/experts.cpp and parallel/expert.cpp. Which experts a token chooses is
// not known: the number that a batch touches is its expectation (moe.hpp), rounded in each layer;
// the rows, k for each token, are exact in their sum and dealt evenly over the ranks.
#include <set>

#include "kernels/cost.hpp"
#include "parallel/residual_stream.hpp"
#include "parallel/shard.hpp"
#include "runtime/plan/moe.hpp"
#include "runtime/plan/step_parts.hpp"

namespace testbed::plan {
namespace {

int64_t share_of_width(const StepParts& step, int64_t width) {
  return split_range(width, step.position.tp, step.position.tp_rank, step.ops.column_granularity())
      .size();
}

int64_t slice_rows(const StepParts& step, int tp_rank, int cp_rank) {
  return RowSlices(step.rows.n_rows_of(cp_rank), step.position.tp).of(tp_rank).size();
}

// The ranks of an expert group are neighbours in the stage; replicas are alike.
GroupTokens exchanged_tokens(const StepParts& step) {
  const ShardPosition& at = step.position;
  GroupTokens tokens{.n_mine = slice_rows(step, at.tp_rank, at.cp_rank)};
  const int n_replica = at.tp * at.cp;
  const int first = n_replica * at.ep + at.tp_rank + at.tp * at.cp_rank - at.ep_rank;
  std::set<int> seen;  // slices of copied rows: the same on all cp ranks
  for (int rank = first; rank < first + at.ep; ++rank) {
    const int64_t n = slice_rows(step, rank % at.tp, rank / at.tp % at.cp);
    tokens.n_rows += n;
    const bool copies = step.rows.cp_use() == CpUse::merge;
    const int slice = copies ? rank % at.tp + at.tp * (rank / n_replica) : rank;
    if (seen.insert(slice).second) tokens.n_distinct += n;
  }
  return tokens;
}

// LocalExperts::forward on n_rows tokens, of which the rank's experts compute load.n_pairs pairs.
void add_local_experts(const StepParts& step, const ExpertLoad& load, int64_t n_rows) {
  const MoeConfig& moe = *step.model.moe;
  const int64_t d_model = step.model.d_model;
  const bool whole = step.position.ep > 1;
  const int64_t d_ff = whole ? moe.d_ff : share_of_width(step, moe.d_ff);
  const bool down_bias = moe.expert_bias && (whole || step.position.tp_rank == 0);
  OpList& ops = step.ops;
  ops.copy("gather rows", load.n_pairs, d_model);
  ops.grouped("experts up",
              OpKind::expert_linear,
              load.n_pairs,
              load.n_touched,
              {.n = 2 * d_ff, .k = d_model, .bias_rows = moe.expert_bias ? 2 * d_ff : 0});
  ops.add("activation",
          OpKind::activation,
          load.n_pairs,
          activation_cost(load.n_pairs, d_ff, ops.activation()));
  ops.grouped("experts down",
              OpKind::expert_linear,
              load.n_pairs,
              load.n_touched,
              {.n = d_model, .k = d_ff, .bias_rows = down_bias ? d_model : 0});
  ops.add("combine",
          OpKind::combine,
          n_rows,
          combine_cost(load.n_pairs, n_rows, d_model, ops.activation()));
}

void add_router(const StepParts& step) {
  const MoeConfig& moe = *step.model.moe;
  const int64_t m = step.m();
  MatrixShape gate =
      step.replicated(moe.n_experts, step.model.d_model, moe.router_bias ? moe.n_experts : 0);
  gate.role = MatrixRole::plain;
  step.ops.linear("router", m, gate);
  const int64_t n_parameters = (moe.selection_bias ? 1 : 0) + (moe.beside_mlp ? 1 : 0);
  step.ops.add(
      "route", OpKind::router, m, router_cost(m, moe.n_experts, moe.routing.top_k, n_parameters));
}

}  // namespace

void add_mlp(const StepParts& step, int64_t d_ff, bool with_bias) {
  const int64_t m = step.m();
  const int64_t d_model = step.model.d_model;
  const int64_t ff = share_of_width(step, d_ff);
  OpList& ops = step.ops;
  ops.linear("gate, up", m, {.n = 2 * ff, .k = d_model, .bias_rows = with_bias ? 2 * ff : 0});
  ops.add("activation", OpKind::activation, m, activation_cost(m, ff, ops.activation()));
  ops.linear(
      "down", m, {.n = d_model, .k = ff, .bias_rows = with_bias ? step.first_of_tp(d_model) : 0});
}

void add_experts(const StepParts& step) {
  const MoeConfig& moe = *step.model.moe;
  const ShardPosition& at = step.position;
  const int64_t m = step.m();
  const int64_t d_model = step.model.d_model;
  const auto load_of = [&](const GroupTokens& tokens) {
    return expert_load(moe.n_experts, moe.routing.top_k, at.ep, at.ep_rank, tokens);
  };
  add_router(step);
  if (!at.experts_all_to_all) {
    add_local_experts(step, load_of({m, m, m}), m);
    if (moe.shared_d_ff == 0) return;
    add_mlp(step, moe.shared_d_ff, false);
    step.ops.residual_add("add", m, d_model);
    return;
  }
  const GroupTokens tokens = exchanged_tokens(step);
  const ExpertLoad load = load_of(tokens);
  step.ops.copy("gather rows", load.n_sent, d_model);
  add_local_experts(step, load, load.n_received);
  step.ops.add("combine",
               OpKind::combine,
               tokens.n_mine,
               combine_cost(load.n_sent, tokens.n_mine, d_model, step.ops.activation()));
  if (moe.shared_d_ff == 0) return;
  add_mlp(step, moe.shared_d_ff, false);
  step.ops.residual_add("add", tokens.n_mine, d_model);
}

}  // namespace testbed::plan
