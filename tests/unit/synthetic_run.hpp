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
    scope_.ring_step = -1;
    return *this;
  }
  RankBuilder& ring_step(int s) {
    scope_.ring_step = s;
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
  // Of the last communication: what it really sent.
  RankBuilder& wire_bytes(int64_t n_bytes) {
    t.comms.back().comm.wire_bytes = n_bytes;
    return *this;
  }
  // Of the last message: the transport knows when it was there.
  RankBuilder& arrived(double at) {
    t.comms.back().comm.arrived_ns = us(at);
    return *this;
  }
  // peer: rank within the pp group. Posted at `post`, which takes no time; waited for in [b, e].
  RankBuilder& message(
      CommOp op, int peer, int sequence, int64_t payload, double post, double b, double e) {
    return message_over(Axis::pp, op, peer, sequence, payload, post, b, e);
  }
  // The same between ranks of a cp group.
  RankBuilder& ring_message(
      CommOp op, int peer, int sequence, int64_t payload, double post, double b, double e) {
    return message_over(Axis::cp, op, peer, sequence, payload, post, b, e);
  }
  RankBuilder& experts(int64_t n_tokens,
                       std::vector<int32_t> tokens_per_expert,
                       std::vector<int64_t> sent_bytes) {
    t.experts.push_back({scope_, n_tokens, std::move(tokens_per_expert), std::move(sent_bytes)});
    return *this;
  }

  RankTimeline t;

 private:
  RankBuilder& message_over(Axis axis,
                            CommOp op,
                            int peer,
                            int sequence,
                            int64_t payload,
                            double post,
                            double b,
                            double e) {
    CommRecord record;
    record.op = op;
    record.axis = axis;
    record.algorithm = CommAlgorithm::direct;
    record.group_size = mesh_.degree(axis);
    record.peer = peer;
    record.group_id = mesh_.group(t.rank, axis).front();
    record.sequence = sequence;
    record.payload_bytes = payload;
    record.wire_bytes = op == CommOp::send ? payload : 0;
    record.post_begin_ns = record.post_end_ns = us(post);
    record.wait_begin_ns = us(b);
    record.wait_end_ns = us(e);
    t.comms.push_back({scope_, record});
    return *this;
  }

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
  input.run.parallel.cp = mesh.cp;
  input.run.parallel.dp = mesh.dp;
  input.run.parallel.ep = mesh.ep;
  input.timelines = std::move(timelines);
  input.peaks.assign(static_cast<size_t>(mesh.world_size()), unit_peaks());
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::pp, Axis::ep}) input.transports[axis] = "shm";
  return input;
}

// Attention of two cp ranks over their own block (ring step 0) and then the other's (1). Rank 1 is
// there at 110 us. Rank 0 is busy until 300 and then finds the block there, as of 200; rank 1 waits
// for its own from 300 until it comes at 340, and until 350 for its send buffer.
inline AnalysisInput ring_input() {
  const Mesh mesh{.cp = 2};
  constexpr int64_t block = 4096;
  RankBuilder first(mesh, 0);
  first.at(Phase::prefill, 0).step(0, 0, 1000, 1000).at(Phase::prefill, 0, 0, Site::attention);
  first.ring_step(0).op(100, 300, {.flops = 200000}, OpKind::attention);
  first.ring_message(CommOp::send, 1, 0, block, 100, 300, 300);
  first.ring_message(CommOp::recv, 1, 0, block, 100, 300, 302).arrived(200);
  first.ring_step(1).op(302, 402, {.flops = 100000}, OpKind::attention);
  RankBuilder second(mesh, 1);
  second.at(Phase::prefill, 0).step(0, 0, 1000, 1000).at(Phase::prefill, 0, 0, Site::attention);
  second.ring_step(0).op(110, 300, {.flops = 190000}, OpKind::attention);
  second.ring_message(CommOp::recv, 0, 0, block, 110, 300, 340).arrived(340);
  second.ring_message(CommOp::send, 0, 0, block, 110, 340, 350);
  second.ring_step(1).op(350, 550, {.flops = 200000}, OpKind::attention);
  AnalysisInput input = synthetic_input(mesh, {first.t, second.t});
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::prefill, 0, 1000, 4, 1)};
  input.timed = {timing};
  return input;
}

// One layer of 4 experts, of which a token takes 2, over expert groups of 2: ranks 0, 1 and 2, 3
// are tp groups and replicas. Their passes have 3 tokens and 1; repeat 1 must not count.
inline AnalysisInput experts_input() {
  const Mesh mesh{.tp = 2, .dp = 2, .ep = 2};
  const std::vector<std::vector<int32_t>> tokens = {{3, 2, 1, 0}, {}, {0, 0, 1, 1}, {}};
  const std::vector<std::vector<int64_t>> sent = {{100, 300}, {50, 0}, {0, 70}, {20, 0}};
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < 4; ++rank) {
    const auto r = static_cast<size_t>(rank);
    RankBuilder b(mesh, rank);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const double t = 1000.0 * repeat;
      b.repeat(repeat).at(Phase::decode, 0).step(t, t, t + 1000, t + 1000);
      b.at(Phase::decode, 0, 0, Site::experts).experts(rank < 2 ? 3 : 1, tokens[r], sent[r]);
      b.op(t, t + 100, {.weight_bytes = 7777});
      const int64_t payload = sent[r][0] + sent[r][1];
      b.collective(CommOp::all_to_all, Axis::ep, repeat, payload, t + 100, t + 200);
      b.wire_bytes(rank % 2 == 0 ? sent[r][1] : sent[r][0]);
      b.op(t + 200, t + 300, {.weight_bytes = 1000 * (rank + 1)}, OpKind::expert_linear);
    }
    timelines.push_back(b.t);
  }
  AnalysisInput input = synthetic_input(mesh, std::move(timelines));
  input.run.experts = {.n_experts = 4, .top_k = 2};
  input.run.parallel.expert_exchange = "all-to-all";
  GenerationTiming timing;
  timing.steps = {timed_step(Phase::decode, 0, 1000, 0, 3, 0),
                  timed_step(Phase::decode, 0, 1000, 0, 1, 1)};
  input.timed = {timing};
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
