#include "runtime/commands/passes.hpp"

#include <algorithm>

#include "kernels/base/byte_stream.hpp"

namespace testbed {
namespace {

Bytes pack(const GenerationResult& result) {
  ByteWriter out;
  out.put(result.timing.requests);
  out.put(result.timing.steps);
  out.put(static_cast<uint64_t>(result.generated.size()));
  for (const std::vector<int32_t>& ids : result.generated) out.put(ids);
  return out.take();
}

// Replicas hold consecutive requests, and their scheduling ranks come in the same order.
void unpack(const Bytes& bytes, GenerationTiming& timing, std::vector<std::vector<int32_t>>& ids) {
  ByteReader in(bytes);
  GenerationTiming part;
  in.get(part.requests);
  in.get(part.steps);
  timing.requests.insert(timing.requests.end(), part.requests.begin(), part.requests.end());
  timing.steps.insert(timing.steps.end(), part.steps.begin(), part.steps.end());
  uint64_t n = 0;
  in.get(n);
  for (uint64_t i = 0; i < n; ++i) in.get(ids.emplace_back());
}

class Passes {
 public:
  Passes(const RankContext& context, Session& session) : context_(context), session_(session) {}

  void generation(const std::function<void(size_t, int32_t)>& on_token, bool timed) {
    GenerationResult result = session_.generate_once(nullptr, 0, on_token);
    GenerationTiming timing;
    keep(result, timing);
    if (timed) results_.timed.push_back(std::move(timing));
  }

  void sample_peak() {
    context_.control.barrier();
    samples_.push_back(context_.machine.read_bandwidth_sample());
    context_.control.barrier();
  }

  void forget_samples() { samples_.clear(); }

  // timed: the stamps cost nothing, so this is the timed pass too.
  void breakdown(int n_repeats, bool timed) {
    Timeline timeline;
    const ClockEstimate before = context_.clock_estimate();
    for (int repeat = 0; repeat < n_repeats; ++repeat) {
      GenerationResult result = session_.generate_once(&timeline, repeat, {});
      GenerationTiming timing;
      keep(result, timing);
      if (timed) results_.timed.push_back(std::move(timing));
    }
    const ClockEstimate after = context_.clock_estimate();
    RankTimeline& mine = timeline.data();
    mine.rank = context_.rank;
    mine.coordinates = context_.coordinates();
    mine.host = context_.machine.host;
    // The mean of both estimates; what they drifted apart adds to the error.
    mine.clock_offset_ns = before.offset_ns + (after.offset_ns - before.offset_ns) / 2;
    mine.clock_error_ns = std::max(before.error_ns, after.error_ns) +
                          std::abs(after.offset_ns - before.offset_ns) / 2;
    for (const Bytes& bytes : context_.control.gather(serialise(mine), 0)) {
      results_.timelines.push_back(parse_timeline(bytes));
    }
  }

  PassResults finish() {
    ByteWriter out;
    out.put(context_.machine.memory_domain);
    out.put(samples_);
    out.put(context_.machine.peak_flops);
    out.put(context_.machine.llc_bytes);
    for (const Bytes& bytes : context_.control.gather(out.take(), 0)) {
      ByteReader in(bytes);
      RankPeaks& peaks = results_.peaks.emplace_back();
      in.get(peaks.memory_domain);
      in.get(peaks.read_bytes_per_s);
      in.get(peaks.peak_flops);
      in.get(peaks.llc_bytes);
    }
    return std::move(results_);
  }

 private:
  void keep(GenerationResult& result, GenerationTiming& timing) {
    const bool schedules = replica_of(context_).schedules();
    std::vector<std::vector<int32_t>> ids;
    for (const Bytes& bytes : context_.control.gather(schedules ? pack(result) : Bytes{}, 0)) {
      if (!bytes.empty()) unpack(bytes, timing, ids);
    }
    if (context_.rank == 0) {
      if (!results_.generated.empty() && ids != results_.generated) results_.repeats_agree = false;
      results_.generated = std::move(ids);
    }
    results_.last = std::move(result);
  }

  const RankContext& context_;
  Session& session_;
  PassResults results_;
  std::vector<double> samples_;
};

// Timelines of long generations are large: one repeat then has to do. Replicas may generate
// unequally long: the longest decides for all.
int breakdown_repeats(const RankContext& context, const Session& session) {
  constexpr int64_t most_events = 2'000'000;
  constexpr int64_t events_per_layer = 16;
  int64_t n_steps = 1;
  ByteWriter mine;
  mine.put(session.most_steps());
  for (const Bytes& bytes : context.control.all_gather(mine.take())) {
    int64_t of_rank = 0;
    ByteReader(bytes).get(of_rank);
    n_steps = std::max(n_steps, of_rank);
  }
  const int64_t per_repeat = n_steps * session.model().config.n_layers * events_per_layer *
                             context.config.parallel.microbatches.value_or(context.mesh.pp);
  return static_cast<int>(
      std::clamp<int64_t>(most_events / per_repeat, 1, std::min(3, context.config.repeats)));
}

}  // namespace

PassResults run_passes(const RankContext& context,
                       Session& session,
                       const std::function<void(size_t, int32_t)>& stream) {
  Passes passes(context, session);
  if (context.virtual_time) {
    passes.sample_peak();
    passes.breakdown(1, /*timed=*/true);
    return passes.finish();
  }
  for (int w = 0; w < context.config.warmup; ++w) {
    passes.generation(w == 0 ? stream : nullptr, /*timed=*/false);
  }
  passes.sample_peak();
  passes.forget_samples();  // the first finds the buffer cold
  passes.sample_peak();
  for (int r = 0; r < context.config.repeats; ++r) {
    passes.generation(nullptr, /*timed=*/true);
    passes.sample_peak();
  }
  passes.breakdown(breakdown_repeats(context, session), /*timed=*/false);
  return passes.finish();
}

}  // namespace testbed
