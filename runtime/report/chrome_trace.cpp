#include "runtime/report/chrome_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "kernels/base/errors.hpp"
#include "runtime/measure/attribution.hpp"

namespace testbed {

namespace {

using Json = nlohmann::ordered_json;

enum Track : int { steps_track, compute_track, comm_track, ring_track, n_tracks };
constexpr const char* track_names[] = {"steps", "compute", "comm", "ring"};

class TraceWriter {
 public:
  explicit TraceWriter(int64_t origin_ns) : origin_ns_(origin_ns) {}

  void metadata(int rank, int track, const char* kind, const std::string& name) {
    emit({{"name", kind}, {"ph", "M"}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}});
  }

  // Stamps of a track come in order.
  void complete(const RankTimeline& timeline,
                Track track,
                const std::string& name,
                std::string_view category,
                int64_t begin_ns,
                int64_t end_ns,
                Json args) {
    int64_t& track_end_ns = track_end_ns_[track];
    if (begin_ns < track_end_ns || end_ns < begin_ns) {
      throw Error(ExitCode::internal_error,
                  fmt::format("trace: {} of rank {} overlaps the event before it on track {}",
                              name,
                              timeline.rank,
                              track_names[track]));
    }
    track_end_ns = end_ns;
    emit({{"name", name},
          {"cat", category},
          {"ph", "X"},
          {"pid", timeline.rank},
          {"tid", static_cast<int>(track)},
          {"ts", us(begin_ns + timeline.clock_offset_ns - origin_ns_)},
          {"dur", us(end_ns - begin_ns)},
          {"args", std::move(args)}});
  }

  void start_rank() { std::fill(std::begin(track_end_ns_), std::end(track_end_ns_), INT64_MIN); }
  std::string finish(bool simulated) && {
    return fmt::format(
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"simulated\":{}}},\"traceEvents\":[{}\n]}}"
        "\n",
        simulated,
        text_);
  }

 private:
  static double us(int64_t ns) { return static_cast<double>(ns) / 1e3; }
  void emit(const Json& event) {
    text_ += text_.empty() ? "\n" : ",\n";
    text_ += event.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  int64_t origin_ns_;
  int64_t track_end_ns_[n_tracks] = {};
  std::string text_;
};

Json scope_args(const Scope& scope) {
  Json args{{"repeat", scope.repeat},
            {"step", scope.step},
            {"microbatch", scope.microbatch},
            {"layer", scope.layer},
            {"site", site_name(scope.site)}};
  if (scope.ring_step >= 0) args["ring_step"] = scope.ring_step;
  return args;
}

void add_ops(TraceWriter& writer, const RankTimeline& timeline) {
  std::vector<OpEvent> ops = timeline.ops;
  std::stable_sort(ops.begin(), ops.end(), [](const OpEvent& a, const OpEvent& b) {
    return a.op.begin_ns < b.op.begin_ns;
  });
  for (const OpEvent& event : ops) {
    Json args = scope_args(event.scope);
    args["flops"] = event.op.cost.flops;
    args["weight_bytes"] = event.op.cost.weight_bytes;
    args["kv_bytes"] = event.op.cost.kv_bytes;
    writer.complete(timeline,
                    compute_track,
                    std::string(op_name(event.op.kind)),
                    phase_name(event.scope.phase),
                    event.op.begin_ns,
                    event.op.end_ns,
                    std::move(args));
  }
}

void add_comms(TraceWriter& writer,
               const RankTimeline& timeline,
               std::span<const CommTiming> timings) {
  for (const TimePiece& piece : comm_pieces(timeline, timings)) {
    const CommEvent& event = timeline.comms[static_cast<size_t>(piece.comm)];
    std::string name(comm_op_name(event.comm.op));
    if (piece.part == Part::wait || piece.part == Part::bubble) {
      name += fmt::format(" {}", part_name(piece.part));
    }
    Json args = scope_args(event.scope);
    args["axis"] = axis_name(event.comm.axis);
    args["algorithm"] = algorithm_name(event.comm.algorithm);
    args["sequence"] = event.comm.sequence;
    args["payload_bytes"] = event.comm.payload_bytes;
    args["wire_bytes"] = event.comm.wire_bytes;
    writer.complete(timeline,
                    comm_track,
                    name,
                    phase_name(event.scope.phase),
                    piece.begin_ns,
                    piece.end_ns,
                    std::move(args));
  }
}

void add_steps(TraceWriter& writer, const RankTimeline& timeline) {
  for (const StepEvent& step : timeline.steps) {
    writer.complete(timeline,
                    steps_track,
                    fmt::format("{} {}", phase_name(step.phase), step.step),
                    phase_name(step.phase),
                    step.begin_ns,
                    step.end_ns,
                    {{"repeat", step.repeat}, {"plan_ns", step.plan_ns - step.begin_ns}});
  }
}

// From the first op or wait of a ring step to its last.
struct RingSpan {
  Scope scope;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

std::vector<RingSpan> ring_spans(const RankTimeline& timeline) {
  using Key = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>;
  std::map<Key, RingSpan> spans;
  const auto see = [&](const Scope& s, int64_t begin_ns, int64_t end_ns) {
    if (s.ring_step < 0) return;
    const Key key{s.repeat, s.step, s.microbatch, s.layer, s.ring_step};
    RingSpan& span = spans.try_emplace(key, RingSpan{s, begin_ns, end_ns}).first->second;
    span.begin_ns = std::min(span.begin_ns, begin_ns);
    span.end_ns = std::max(span.end_ns, end_ns);
  };
  for (const OpEvent& event : timeline.ops) see(event.scope, event.op.begin_ns, event.op.end_ns);
  for (const CommEvent& event : timeline.comms) {
    see(event.scope, event.comm.wait_begin_ns, event.comm.wait_end_ns);
  }
  std::vector<RingSpan> in_order;
  in_order.reserve(spans.size());
  for (const auto& [key, span] : spans) in_order.push_back(span);
  std::stable_sort(in_order.begin(), in_order.end(), [](const RingSpan& a, const RingSpan& b) {
    return a.begin_ns < b.begin_ns;
  });
  return in_order;
}

void add_ring(TraceWriter& writer, const RankTimeline& timeline) {
  const std::vector<RingSpan> spans = ring_spans(timeline);
  if (spans.empty()) return;
  writer.metadata(timeline.rank, ring_track, "thread_name", track_names[ring_track]);
  for (const RingSpan& span : spans) {
    writer.complete(timeline,
                    ring_track,
                    fmt::format("ring step {}", span.scope.ring_step),
                    phase_name(span.scope.phase),
                    span.begin_ns,
                    span.end_ns,
                    scope_args(span.scope));
  }
}

int64_t earliest_ns(std::span<const RankTimeline> timelines) {
  int64_t earliest = INT64_MAX;
  for (const RankTimeline& timeline : timelines) {
    const auto see = [&](int64_t ns) {
      earliest = std::min(earliest, ns + timeline.clock_offset_ns);
    };
    for (const StepEvent& step : timeline.steps) see(step.begin_ns);
    for (const OpEvent& event : timeline.ops) see(event.op.begin_ns);
    for (const CommEvent& event : timeline.comms) see(event.comm.post_begin_ns);
  }
  return earliest == INT64_MAX ? 0 : earliest;
}

}  // namespace

std::string chrome_trace(std::span<const RankTimeline> timelines,
                         const Mesh& mesh,
                         bool simulated) {
  const MatchedComms matched = match_comms(timelines, mesh);
  TraceWriter writer(earliest_ns(timelines));
  for (size_t i = 0; i < timelines.size(); ++i) {
    const RankTimeline& timeline = timelines[i];
    const Coordinates& c = timeline.coordinates;
    writer.start_rank();
    writer.metadata(timeline.rank,
                    0,
                    "process_name",
                    fmt::format("rank {} (tp {} pp {} cp {} dp {}) on {}",
                                timeline.rank,
                                c.tp,
                                c.pp,
                                c.cp,
                                c.dp,
                                timeline.host));
    for (int track = 0; track < ring_track; ++track) {
      writer.metadata(timeline.rank, track, "thread_name", track_names[track]);
    }
    add_steps(writer, timeline);
    add_ops(writer, timeline);
    add_comms(writer, timeline, matched.timings[i]);
    add_ring(writer, timeline);
  }
  return std::move(writer).finish(simulated);
}

}  // namespace testbed
