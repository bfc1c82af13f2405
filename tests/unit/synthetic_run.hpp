// Hand-made timelines with known answers, for the tests of analysis and reports. Stamps in us.
#pragma once

#include <utility>
#include <vector>

#include "runtime/measure/analysis.hpp"

namespace testbed {

inline int64_t us(double value) { return static_cast<int64_t>(value * 1e3); }

class RankBuilder {
 public:
  RankBuilder(const Mesh& mesh, int rank) : mesh_(mesh) {
    t.rank = rank;
    t.coordinates = mesh.coordinates(rank);
    t.host = "host0";
  }
  RankBuilder& at(Phase phase, int step, int layer = -1, Site site = Site::other, int mb = 0) {
    scope_.phase = phase;
    scope_.step = step;
    scope_.layer = layer;
    scope_.site = site;
    scope_.microbatch = mb;
    return *this;
  }
  RankBuilder& repeat(int r) {
    scope_.repeat = r;
    return *this;
  }
  RankBuilder& step(double begin, double plan, double work_end, double end) {
    t.steps.push_back({.phase = scope_.phase,
                       .repeat = scope_.repeat,
                       .step = scope_.step,
                       .begin_ns = us(begin),
                       .plan_ns = us(plan),
                       .work_end_ns = us(work_end),
                       .end_ns = us(end)});
    return *this;
  }
  RankBuilder& op(double begin, double end, const OpCost& cost, OpKind kind = OpKind::linear) {
    t.ops.push_back(
        {scope_, {.kind = kind, .cost = cost, .begin_ns = us(begin), .end_ns = us(end)}});
    return *this;
  }
  RankBuilder& collective(CommOp op, Axis axis, int sequence, int64_t payload, double b, double e) {
    const std::vector<int> group = mesh_.group(t.rank, axis);
    const auto n = static_cast<int64_t>(group.size());
    CommRecord record;
    record.op = op;
    record.axis = axis;
    record.algorithm = n == 1 ? CommAlgorithm::none : CommAlgorithm::two_shot;
    record.group_size = static_cast<int32_t>(n);
    record.group_id = group.front();
    record.sequence = sequence;
    record.payload_bytes = payload;
    record.wire_bytes = 2 * (n - 1) * payload / n;
    record.post_begin_ns = us(b);
    record.post_end_ns = record.wait_begin_ns = record.wait_end_ns = us(e);
    t.comms.push_back({scope_, record});
    return *this;
  }
  RankBuilder& all_reduce(int sequence, int64_t payload, double begin, double end) {
    return collective(CommOp::all_reduce, Axis::tp, sequence, payload, begin, end);
  }
  // peer: rank within the pp group. Posted at `post`, which takes no time; waited for in [b, e].
  RankBuilder& message(
      CommOp op, int peer, int sequence, int64_t payload, double post, double b, double e) {
    CommRecord record;
    record.op = op;
    record.axis = Axis::pp;
    record.algorithm = CommAlgorithm::direct;
    record.group_size = mesh_.pp;
    record.peer = peer;
    record.group_id = mesh_.group(t.rank, Axis::pp).front();
    record.sequence = sequence;
    record.payload_bytes = payload;
    record.wire_bytes = op == CommOp::send ? payload : 0;
    record.post_begin_ns = record.post_end_ns = us(post);
    record.wait_begin_ns = us(b);
    record.wait_end_ns = us(e);
    t.comms.push_back({scope_, record});
    return *this;
  }

  RankTimeline t;

 private:
  Mesh mesh_;
  Scope scope_;
};

// 1 GB/s and 1 GFLOP/s per rank: 1000 bytes or FLOPs take 1 us. No cache.
inline RankPeaks unit_peaks() {
  RankPeaks peaks;
  peaks.read_bytes_per_s = {1e9};
  peaks.peak_flops = 1e9;
  return peaks;
}

inline StepTiming timed_step(
    Phase phase, double begin, double end, int64_t prompt, int64_t fresh, int dp = 0) {
  return {.dp = dp,
          .phase = phase,
          .begin_ns = us(begin),
          .end_ns = us(end),
          .n_prompt_tokens = prompt,
          .n_new_tokens = fresh};
}

inline AnalysisInput synthetic_input(const Mesh& mesh, std::vector<RankTimeline> timelines) {
  AnalysisInput input;
  input.mesh = mesh;
  input.run.device = "cpu";
  input.run.model = "toy";
  input.run.layers = 2;
  input.run.weight_dtype = input.run.compute_dtype = "f32";
  input.run.parallel.tp = mesh.tp;
  input.run.parallel.pp = mesh.pp;
  input.run.parallel.dp = mesh.dp;
  input.timelines = std::move(timelines);
  input.peaks.assign(static_cast<size_t>(mesh.world_size()), unit_peaks());
  input.transports[Axis::tp] = "shm";
  input.transports[Axis::pp] = "shm";
  return input;
}

// The case of D31: two ranks, one decode step of 10,000 us; each reads 1,000,000 weight bytes (1000
// us) in an op of 2000 us, then all-reduces 800 bytes. Rank 1 comes 5000 us late.
inline AnalysisInput late_rank_input() {
  const Mesh mesh{.tp = 2};
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < 2; ++rank) {
    const double late = rank == 1 ? 5000.0 : 0.0;
    RankBuilder b(mesh, rank);
    b.at(Phase::decode, 0).step(0, 100, 8100, 10000);
    b.at(Phase::decode, 0, 0, Site::attention);
    b.op(100, 2100, {.flops = 1000, .model_flops = 1000, .weight_bytes = 1000000});
    b.all_reduce(7, 800, 2100 + late, 8000);
    timelines.push_back(b.t);
  }
  AnalysisInput input = synthetic_input(mesh, std::move(timelines));
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::decode, 0, 8000, 0, 1)};
  timing.requests = {{.request = 0,
                      .arrival_ns = 0,
                      .first_token_ns = us(2000),
                      .last_token_ns = us(8000),
                      .n_generated = 4}};
  input.timed = {timing};
  RequestRecord request;
  request.prompt_tokens = 3;
  request.generated_tokens = 4;
  request.ids = {5, 6, 7, 8};
  input.run.requests = {request};
  return input;
}

}  // namespace testbed
