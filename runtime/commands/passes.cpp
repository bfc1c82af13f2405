#include "runtime/commands/passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

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
  Passes(const RankContext& context, Session& session)
      : context_(context),
        session_(session),
        counters_(context.machine.begin_counters, context.machine.end_counters) {}

  void warm_up(const std::function<void(size_t, int32_t)>& on_token) {
    GenerationResult result = session_.generate_once(nullptr, 0, on_token);
    GenerationTiming unused;
    keep(result, unused);
  }

  // The counters are read before the barrier that the generation begins with, and once all ranks
  // have done: their milliseconds are in no step.
  void timed() {
    counters_.begin();
    GenerationResult result = session_.generate_once(nullptr, 0, {});
    context_.device.synchronize();
    context_.control.barrier();
    counters_.end();
    keep(result, results_.timed.emplace_back());
  }

  // A generation of its own, as the timed ones are: what asks the hardware may slow it.
  void count_dram() {
    if (!context_.machine.count_dram) return;
    dram_ = context_.machine.count_dram([&] {
      GenerationResult result = session_.generate_once(nullptr, 0, {});
      context_.device.synchronize();
      context_.control.barrier();
      GenerationTiming unused;
      keep(result, unused);
    });
  }

  void sample_peak() {
    context_.control.barrier();
    samples_.push_back(context_.machine.read_bandwidth_sample());
    context_.control.barrier();
  }

  void forget_samples() { samples_.clear(); }

  // A decode step's shape is captured when it comes the second time, which takes milliseconds: what
  // comes once in a generation is a graph from the third generation on.
  void capture_graphs(Timeline* timeline) {
    if (!replays_decoding(context_.device, session_.model().config, context_.mesh.cp)) return;
    for (int i = 0; i < 2; ++i) session_.generate_once(timeline, 0, {});
  }

  // timed: the stamps cost nothing, so this is the timed pass too.
  void breakdown(int n_repeats, bool timed) {
    Timeline unused;
    capture_graphs(&unused);  // with stamps in them
    Timeline timeline;
    const ClockEstimate before = context_.clock_estimate();
    for (int repeat = 0; repeat < n_repeats; ++repeat) {
      GenerationResult result = session_.generate_once(&timeline, repeat, {});
      GenerationTiming timing;
      keep(result, timing);
      if (timed) results_.timed.push_back(std::move(timing));
    }
    const ClockEstimate after = context_.clock_estimate();
    context_.device.settle_stamps();
    timeline.resolve([&](int64_t stamp) { return context_.device.stamp_ns(stamp); });
    RankTimeline& mine = timeline.data();
    mine.stamp_error_ns = context_.device.stamp_error_ns();
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
    const std::optional<DeviceCounters> counters = all_counters();
    out.put(counters.has_value());
    if (counters) put(out, *counters);
    for (const Bytes& bytes : context_.control.gather(out.take(), 0)) {
      ByteReader in(bytes);
      RankPeaks& peaks = results_.peaks.emplace_back();
      in.get(peaks.memory_domain);
      in.get(peaks.read_bytes_per_s);
      in.get(peaks.peak_flops);
      in.get(peaks.llc_bytes);
      bool has_counters = false;
      in.get(has_counters);
      auto& of_rank = results_.counters.emplace_back();
      if (has_counters) of_rank = get_device_counters(in);
    }
    return std::move(results_);
  }

 private:
  // Of the timed generations; DRAM's of one, taken for each.
  std::optional<DeviceCounters> all_counters() const {
    std::optional<DeviceCounters> all = counters_.total();
    if (!dram_) return all;
    if (!all) all.emplace();
    const auto n_timed = static_cast<int64_t>(results_.timed.size());
    all->why_no_dram = dram_->why_no_dram;
    if (dram_->dram_read_bytes) all->dram_read_bytes = n_timed * *dram_->dram_read_bytes;
    if (dram_->dram_write_bytes) all->dram_write_bytes = n_timed * *dram_->dram_write_bytes;
    return all;
  }

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
  CounterWindows counters_;
  std::optional<DeviceCounters> dram_;
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

// --deterministic: two generations, and ranks that hold the same rows, agree in every bit of the
// residual stream.
void require_same_bits(const RankContext& context, Session& session) {
  const ResidualHash first = session.generate_fingerprint();
  const ResidualHash second = session.generate_fingerprint();
  std::optional<std::string> error;
  if (!(first == second)) error = "--deterministic: two generations differ in their bits";
  ByteWriter mine;
  mine.put(first);
  std::vector<ResidualHash> all;
  for (const Bytes& bytes : context.control.all_gather(mine.take())) {
    ByteReader(bytes).get(all.emplace_back());
  }
  if (!error) error = why_bits_differ(context.mesh, all);
  context.control.agree(error);
}

}  // namespace

std::optional<std::string> why_bits_differ(const Mesh& mesh,
                                           const std::vector<ResidualHash>& hashes) {
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const ResidualHash& mine = hashes[static_cast<size_t>(rank)];
    const int tp = mesh.group(rank, Axis::tp).front();
    const int cp = mesh.group(tp, Axis::cp).front();
    const bool as_tp = mine.of_tp == hashes[static_cast<size_t>(tp)].of_tp;
    const bool as_cp = mine.of_tp_and_cp == hashes[static_cast<size_t>(cp)].of_tp_and_cp;
    if (as_tp && as_cp) continue;
    return fmt::format(
        "--deterministic: rank {} differs in its bits from rank {}, which holds the "
        "same rows",
        rank,
        as_tp ? cp : tp);
  }
  return std::nullopt;
}

PassResults run_passes(const RankContext& context,
                       Session& session,
                       const std::function<void(size_t, int32_t)>& stream) {
  Passes passes(context, session);
  if (context.virtual_time) {
    passes.sample_peak();
    passes.breakdown(1, /*timed=*/true);
    return passes.finish();
  }
  // Values beyond the range are looked for where nothing is timed; all generations are alike.
  for (int w = 0; w < context.config.warmup; ++w) {
    session.set_check_finite(w == 0);
    passes.warm_up(w == 0 ? stream : nullptr);
  }
  session.set_check_finite(false);
  if (context.config.warmup > 0) context.transports();
  if (context.config.deterministic) require_same_bits(context, session);
  if (context.config.warmup > 0) passes.capture_graphs(nullptr);
  passes.sample_peak();
  passes.forget_samples();  // the first finds the buffer cold
  passes.sample_peak();
  for (int r = 0; r < context.config.repeats; ++r) {
    passes.timed();
    passes.sample_peak();
  }
  passes.count_dram();
  passes.breakdown(breakdown_repeats(context, session), /*timed=*/false);
  PassResults results = passes.finish();
  const bool differs = context.config.deterministic && !results.repeats_agree;
  context.control.agree(
      differs ? std::optional<std::string>("--deterministic: repeats generated different tokens")
              : std::nullopt);
  return results;
}

}  // namespace testbed
