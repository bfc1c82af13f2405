// layers_of and pipeline_of: where in the model the bytes and the time went.
#include <algorithm>
#include <map>
#include <set>

#include "runtime/measure/breakdown.hpp"
#include "runtime/measure/bubble.hpp"

namespace testbed {

namespace {

// Of the collectives over tp.
struct TensorParallelBytes {
  int64_t all_reduce = 0;
  int64_t all_reduce_wire = 0;
  int64_t reduce_scatter = 0;
  int64_t all_gather = 0;

  int64_t payload() const { return all_reduce + reduce_scatter + all_gather; }
  void add(const CommRecord& record) {
    if (record.op == CommOp::all_reduce) {
      all_reduce += record.payload_bytes;
      all_reduce_wire += record.wire_bytes;
    }
    if (record.op == CommOp::reduce_scatter) reduce_scatter += record.payload_bytes;
    if (record.op == CommOp::all_gather) all_gather += record.payload_bytes;
  }
};

// One device's part of a layer, over all repeats.
struct LayerSum {
  int64_t weight_bytes = 0;
  int64_t kv_bytes = 0;
  TensorParallelBytes tensor_parallel;
  int64_t memory_ns = 0;
  int64_t wire_ns = 0;
  int64_t wait_ns = 0;
};

bool is_of_layers(Axis axis) { return axis == Axis::tp || axis == Axis::cp || axis == Axis::ep; }

std::map<int32_t, LayerSum> sums_of(const Breakdown& breakdown, int rank, Phase phase) {
  std::map<int32_t, LayerSum> layers;
  const RankTimeline& timeline = breakdown.timeline(rank);
  const RankBreakdown& parts = breakdown.rank(rank);
  for (size_t i = 0; i < timeline.ops.size(); ++i) {
    const OpEvent& event = timeline.ops[i];
    if (!in_phase(event.scope, phase)) continue;
    LayerSum& sum = layers[event.scope.layer];
    sum.weight_bytes += event.op.cost.weight_bytes;
    sum.kv_bytes += event.op.cost.kv_bytes;
    sum.memory_ns += parts.op_memory_ns[i];
  }
  for (size_t i = 0; i < timeline.comms.size(); ++i) {
    const CommEvent& event = timeline.comms[i];
    if (!in_phase(event.scope, phase) || !is_of_layers(event.comm.axis)) continue;
    LayerSum& sum = layers[event.scope.layer];
    sum.wire_ns += parts.comm_wire_ns[i];
    sum.wait_ns += parts.comm_blocked_ns[i];
    if (event.comm.axis == Axis::tp) sum.tensor_parallel.add(event.comm);
  }
  return layers;
}

void add_device(const LayerSum& sum, int64_t n_steps, LayerRecord& layer) {
  layer.weight_bytes += per_rounded(sum.weight_bytes, n_steps);
  layer.kv_bytes += per_rounded(sum.kv_bytes, n_steps);
  layer.memory_ms += per(ns_to_ms(sum.memory_ns), n_steps);
  layer.wire_ms += per(ns_to_ms(sum.wire_ns), n_steps);
  layer.wait_ms += per(ns_to_ms(sum.wait_ns), n_steps);
}

void add_tensor_parallel(const TensorParallelBytes& sum, int64_t n_steps, LayerRecord& layer) {
  layer.all_reduce_payload_bytes += per_rounded(sum.all_reduce, n_steps);
  layer.all_reduce_wire_bytes += per_rounded(sum.all_reduce_wire, n_steps);
  layer.reduce_scatter_payload_bytes += per_rounded(sum.reduce_scatter, n_steps);
  layer.all_gather_payload_bytes += per_rounded(sum.all_gather, n_steps);
}

// The replica that stands for all: the one with the most steps.
int reference_replica(const Breakdown& breakdown, Phase phase) {
  int reference = 0;
  int64_t most = -1;
  for (int dp = 0; dp < breakdown.input.mesh.dp; ++dp) {
    const int64_t n_steps = breakdown.n_steps(breakdown.input.mesh.rank({.dp = dp}), phase);
    if (n_steps > most) {
      most = n_steps;
      reference = dp;
    }
  }
  return reference;
}

// Distinct microbatches of each step of the reference replica, by the ops of its first stage: with
// cp a rank may have no rows of one.
std::vector<int> microbatches_of_steps(const Breakdown& breakdown, Phase phase) {
  const int replica = reference_replica(breakdown, phase);
  std::map<std::pair<int32_t, int32_t>, std::set<int32_t>> seen;  // (repeat, step)
  for (int rank = 0; rank < breakdown.world_size(); ++rank) {
    const Coordinates c = breakdown.timeline(rank).coordinates;
    if (c.dp != replica || c.pp != 0 || c.tp != 0) continue;
    for (const OpEvent& event : breakdown.timeline(rank).ops) {
      if (!in_phase(event.scope, phase) || event.scope.microbatch < 0) continue;
      seen[{event.scope.repeat, event.scope.step}].insert(event.scope.microbatch);
    }
  }
  std::vector<int> counts;
  counts.reserve(seen.size());
  for (const auto& [step, microbatches] : seen) {
    counts.push_back(static_cast<int>(microbatches.size()));
  }
  if (counts.empty()) counts.push_back(1);
  return counts;
}

// The mean over the steps, each with its own microbatches; null if any has no formula.
std::optional<double> mean_formula(const std::vector<int>& counts,
                                   const Breakdown& breakdown,
                                   bool flushed) {
  double sum = 0.0;
  for (const int m : counts) {
    const int n_stages = breakdown.input.mesh.pp;
    const std::optional<double> ideal =
        flushed ? flushed_bubble(n_stages, m, breakdown.input.run.parallel.virtual_stages)
                : std::optional<double>(decode_bubble(n_stages, m));
    if (!ideal) return std::nullopt;
    sum += *ideal;
  }
  return sum / static_cast<double>(counts.size());
}

struct StageSum {
  std::set<int> layers;
  int64_t n_steps = 0;  // of all its devices
  int64_t window_ns = 0;
  int64_t transfer_ns = 0;
  int64_t bubble_ns = 0;
};

void add_rank(const Breakdown& breakdown, int rank, Phase phase, StageSum& stage) {
  for (const OpEvent& event : breakdown.timeline(rank).ops) {
    if (in_phase(event.scope, phase) && event.scope.layer >= 0) {
      stage.layers.insert(event.scope.layer);
    }
  }
  for (const StepParts& step : breakdown.rank(rank).steps) {
    if (step.phase != phase) continue;
    ++stage.n_steps;
    stage.window_ns += step.window_ns;
    stage.transfer_ns += step.pp_interconnect_ns;
    stage.bubble_ns += step.part_ns[static_cast<int>(Part::bubble)];
  }
}

}  // namespace

std::vector<LayerRecord> layers_of(const Breakdown& breakdown, Phase phase) {
  std::map<int32_t, LayerRecord> layers;
  std::map<int32_t, int64_t> n_devices;
  // One tp group of a stage stands for all, its first rank for it: of the reference replica, and of
  // its cp group the one with most to exchange, since the ranks of that have unequally many rows.
  // (Outside the layers the stages' groups add up.)
  std::map<std::pair<int32_t, int>, TensorParallelBytes> busiest;  // [layer, stage]
  const int reference = reference_replica(breakdown, phase);
  for (int rank = 0; rank < breakdown.world_size(); ++rank) {
    const Coordinates& c = breakdown.timeline(rank).coordinates;
    for (const auto& [index, sum] : sums_of(breakdown, rank, phase)) {
      LayerRecord& layer = layers[index];
      layer.layer = index;
      ++n_devices[index];
      add_device(sum, breakdown.n_steps(rank, phase), layer);
      if (c.tp != 0 || c.dp != reference) continue;
      TensorParallelBytes& most = busiest[{index, c.pp}];
      if (sum.tensor_parallel.payload() > most.payload()) most = sum.tensor_parallel;
    }
  }
  for (const auto& [where, sum] : busiest) {
    const int rank = breakdown.input.mesh.rank({.dp = reference, .pp = where.second});
    add_tensor_parallel(sum, breakdown.n_steps(rank, phase), layers[where.first]);
  }
  std::vector<LayerRecord> result;
  for (auto& [index, layer] : layers) {
    layer.memory_ms = per(layer.memory_ms, n_devices[index]);
    layer.wire_ms = per(layer.wire_ms, n_devices[index]);
    layer.wait_ms = per(layer.wait_ms, n_devices[index]);
    result.push_back(layer);
  }
  return result;
}

std::optional<PipelineRecord> pipeline_of(const Breakdown& breakdown, Phase phase) {
  const int n_stages = breakdown.input.mesh.pp;
  if (n_stages == 1) return std::nullopt;
  std::vector<StageSum> sums(static_cast<size_t>(n_stages));
  for (int rank = 0; rank < breakdown.world_size(); ++rank) {
    const auto stage = static_cast<size_t>(breakdown.timeline(rank).coordinates.pp);
    add_rank(breakdown, rank, phase, sums[stage]);
  }
  PipelineRecord pipeline;
  // A single decode step fills and drains the pipeline like a prefill step.
  const bool one_step =
      breakdown.n_steps(0, phase) <= static_cast<int64_t>(breakdown.repeats.size());
  pipeline.flushed = phase != Phase::decode || one_step;
  const std::vector<int> counts = microbatches_of_steps(breakdown, phase);
  const auto [fewest, most] = std::minmax_element(counts.begin(), counts.end());
  pipeline.effective_microbatches = *most;
  pipeline.bubble_formula = mean_formula(counts, breakdown, pipeline.flushed);
  std::vector<double> busy_ms;
  for (int i = 0; i < n_stages; ++i) {
    const StageSum& sum = sums[static_cast<size_t>(i)];
    StageRecord stage{.stage = i, .layers = {sum.layers.begin(), sum.layers.end()}};
    stage.busy_ms = per(ns_to_ms(sum.window_ns - sum.transfer_ns - sum.bubble_ns), sum.n_steps);
    stage.transfer_ms = per(ns_to_ms(sum.transfer_ns), sum.n_steps);
    stage.idle_ms = per(ns_to_ms(sum.bubble_ns), sum.n_steps);
    pipeline.bubble_measured +=
        per(static_cast<double>(sum.bubble_ns), sum.window_ns) / static_cast<double>(n_stages);
    busy_ms.push_back(stage.busy_ms);
    pipeline.stages.push_back(std::move(stage));
  }
  if (breakdown.input.run.parallel.virtual_stages == 1 && *fewest == *most) {
    pipeline.bubble_from_stages =
        bubble_of_stages(busy_ms, pipeline.effective_microbatches, pipeline.flushed);
  }
  return pipeline;
}

}  // namespace testbed
