// Collectives: every operation on groups of 2, 4, 8 and all ranks, within hosts and between them,
// by payload. Every value of every call is checked; every size is held against its own gate.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "kernels/base/hash.hpp"
#include "runtime/accept/collective_groups.hpp"
#include "runtime/accept/collective_report.hpp"
#include "runtime/accept/collective_sweep.hpp"
#include "runtime/accept/collective_trial.hpp"
#include "runtime/accept/rank_values.hpp"
#include "runtime/accept/stage.hpp"
#include "runtime/serving/memory_plan.hpp"

namespace testbed {
namespace {

constexpr CommOp ops[] = {CommOp::all_reduce,
                          CommOp::all_gather,
                          CommOp::reduce_scatter,
                          CommOp::all_to_all,
                          CommOp::broadcast};
constexpr int64_t least_bytes = 512;
constexpr int64_t quick_most_bytes = int64_t{16} << 20;
constexpr int64_t quick_step = 8;  // from size to size; else 2

// Powers of two that give each rank a share, the largest among them.
std::vector<int64_t> sizes_of(const AcceptConfig& config, int n) {
  const int64_t most =
      config.quick ? std::min(config.most_bytes, quick_most_bytes) : config.most_bytes;
  std::vector<int64_t> sizes;
  for (int64_t bytes = least_bytes; bytes <= most; bytes *= 2) {
    if (payload_elements(bytes, config.compute_dtype, n) > 0) sizes.push_back(bytes);
  }
  if (!config.quick) return sizes;
  std::vector<int64_t> some;
  for (const int64_t bytes : sizes) {
    const bool is_last = bytes == sizes.back();
    if (is_last || some.empty() || bytes >= quick_step * some.back()) some.push_back(bytes);
  }
  return some;
}

SweepOptions sweep_options(const AcceptConfig& config, CommOp op, int n) {
  SweepOptions options{.op = op, .sizes = sizes_of(config, n), .repeats = config.repeats};
  options.seed = config.seed;
  if (config.quick) {
    options.repeats = std::min(config.repeats, 3);
    options.sample_s = 2e-3;
    options.point_s = 1.0;
  }
  return options;
}

std::string name_of(CommOp op, const GroupSet& set, bool several_hosts) {
  return fmt::format("{} {} rank{}{}",
                     comm_op_name(op),
                     set.size,
                     set.size == 1 ? "" : "s",
                     several_hosts ? " " + set.scope : "");
}

std::string explanation_of(const SweepOptions& options, const GroupSet& set) {
  size_t n_groups = 0;
  for (const auto& groups : set.turns) n_groups += groups.size();
  return fmt::format(
      "{} over {} group{} of {} rank{} ({}), payloads of {} to {} bytes in {} sizes. Every call's "
      "values follow from seed, rank, call and offset, sums of them are exact, and every element "
      "that comes out is compared bit by bit outside the timing. A call's time is the slowest "
      "rank's from a barrier; repeats are held by their median, each size against its own gate: "
      "collective.us up to latency_up_to_bytes, collective.busbw_gb_s from bandwidth_from_bytes.",
      comm_op_name(options.op),
      n_groups,
      n_groups == 1 ? "" : "s",
      set.size,
      set.size == 1 ? "" : "s",
      set.scope,
      options.sizes.empty() ? 0 : options.sizes.front(),
      options.sizes.empty() ? 0 : options.sizes.back(),
      options.sizes.size());
}

PlannedCase plan_case(const AcceptPlanInput& input, CommOp op, const GroupSet& set, size_t index) {
  const std::set<std::string> hosts(input.hosts.begin(), input.hosts.end());
  const SweepOptions options = sweep_options(input.config, op, set.size);
  const auto n_turns = static_cast<double>(set.turns.size());
  const auto n_sizes = static_cast<double>(options.sizes.size());
  PlannedCase planned{.stage = "collectives",
                      .name = name_of(op, set, hosts.size() > 1),
                      .explanation = explanation_of(options, set),
                      .skip = {}};
  planned.estimated_s = n_turns * n_sizes * (input.config.quick ? 0.05 : 0.3);
  // Where calls are slow, the last ones take up to point_s each, and their values and checks
  // several times that; a call that does not end has the job's deadline.
  planned.deadline_s =
      input.config.timeout_s + n_turns * (n_sizes * 2.0 + 24.0 * options.point_s) + 30.0;
  if (options.sizes.empty()) {
    planned.skip = fmt::format("no payload of {} to {} bytes has a share for each of {} ranks",
                               least_bytes,
                               input.config.most_bytes,
                               set.size);
  }
  for (const char* figure : {"collective.us", "collective.busbw_gb_s"}) {
    planned.measures.push_back({.figure = figure,
                                .op = std::string(comm_op_name(op)),
                                .ranks = set.size,
                                .scope = set.scope});
  }
  const DType dtype = input.config.compute_dtype;
  for (const int64_t bytes : options.sizes) {
    planned.sizes.push_back(dtype_bytes(dtype, payload_elements(bytes, dtype, set.size)));
  }
  planned.numbers = {{"op", static_cast<int64_t>(op)}, {"groups", static_cast<int64_t>(index)}};
  return planned;
}

class CollectivesStage final : public Stage {
 public:
  std::string_view name() const override { return "collectives"; }

  std::vector<PlannedCase> plan(const AcceptPlanInput& input) const override {
    const std::vector<GroupSet> sets = group_sets(input.hosts);
    std::vector<PlannedCase> cases;
    cases.reserve(sets.size() * std::size(ops));
    for (size_t i = 0; i < sets.size(); ++i) {
      for (const CommOp op : ops) cases.push_back(plan_case(input, op, sets[i], i));
    }
    return cases;
  }

  CaseResult run(const AcceptContext& context, const PlannedCase& planned) override;

 private:
  uint64_t n_runs_ = 0;
};

// The largest payload for which every rank has the memory, half of what is free being left alone.
int64_t most_bytes_in_memory(const AcceptContext& context, CommOp op) {
  // Devices have more than the host's ranks; those of the host share it.
  if (context.device.kind() != "cpu") return std::numeric_limits<int64_t>::max();
  const double per_rank =
      static_cast<double>(host_memory_bytes()) / 2.0 / std::max(1, context.machine.ranks_on_host);
  const double least = least_of_all(context.control, per_rank);
  int64_t bytes = least_bytes;
  while (static_cast<double>(trial_bytes(op, 2 * bytes)) <= least) bytes *= 2;
  return bytes;
}

CaseResult CollectivesStage::run(const AcceptContext& context, const PlannedCase& planned) {
  const std::vector<GroupSet> sets = group_sets(context.hosts);
  const GroupSet& set = sets[static_cast<size_t>(planned.numbers.at("groups"))];
  SweepOptions options =
      sweep_options(context.config, static_cast<CommOp>(planned.numbers.at("op")), set.size);
  // Other values than any case before: what an earlier one left in memory is wrong here.
  options.seed = mix64(options.seed ^ mix64(++n_runs_));
  CaseResult result{.stage = planned.stage, .name = planned.name};
  const int64_t most_bytes = most_bytes_in_memory(context, options.op);
  if (options.sizes.back() > most_bytes) {
    result.not_run.push_back(fmt::format(
        "payloads above {} bytes: the ranks of a host have no memory for them (--max-bytes asks "
        "for less)",
        most_bytes));
    while (options.sizes.size() > 1 && options.sizes.back() > most_bytes) options.sizes.pop_back();
  }
  const std::vector<CollectiveCurve> curves = sweep_collective(context, set, options);
  if (context.rank == 0) report_collective(context, set, options, curves, result);
  return result;
}

}  // namespace

std::unique_ptr<Stage> make_collectives_stage() { return std::make_unique<CollectivesStage>(); }

}  // namespace testbed
