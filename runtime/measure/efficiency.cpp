// add_efficiency: bytes and FLOPs of the timed step against what the devices can do.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/base/errors.hpp"
#include "runtime/measure/breakdown.hpp"

namespace testbed {

namespace {

std::string domain_name(const AnalysisInput& input, int rank) {
  const auto r = static_cast<size_t>(rank);
  const std::string& name = input.peaks[r].memory_domain;
  return name.empty() ? input.timelines[r].host : name;
}

// What the domain's ranks could touch at most: what they hold. 0 if not said.
int64_t resident_bytes(const AnalysisInput& input, const std::vector<int>& ranks) {
  const std::vector<MemoryRecord>& memory = input.run.memory;  // by rank
  if (memory.empty()) return 0;
  int64_t n_bytes = 0;
  for (const int rank : ranks) {
    const MemoryRecord& of_rank = memory[static_cast<size_t>(rank)];
    n_bytes += of_rank.weights_bytes + of_rank.kv_used_bytes;
  }
  return n_bytes;
}

MemoryDomainRecord domain_of(const AnalysisInput& input,
                             const PhaseRecord& phase,
                             const PeakRecord& peak,
                             double seconds) {
  MemoryDomainRecord domain;
  domain.name = peak.memory_domain;
  domain.ranks = peak.ranks;
  int64_t bytes_total = 0;
  for (const int rank : peak.ranks) {
    const DevicePhaseRecord& device = phase.per_device[static_cast<size_t>(rank)];
    domain.bytes_per_step += device.weight_bytes + device.kv_bytes;
    bytes_total += device.read_bytes_total;
  }
  // Microbatches read the same weights again: the bytes of a step can exceed what is there.
  domain.working_set_bytes = domain.bytes_per_step;
  const int64_t resident = resident_bytes(input, peak.ranks);
  if (resident > 0) domain.working_set_bytes = std::min(domain.working_set_bytes, resident);
  domain.cache_resident = domain.working_set_bytes < 4 * peak.llc_bytes;
  domain.peak_bytes_per_s = peak.read_bytes_per_s.median();
  if (!domain.cache_resident && seconds > 0.0) {
    domain.mbu = static_cast<double>(bytes_total) / (seconds * domain.peak_bytes_per_s);
  }
  return domain;
}

void add_mfu(PhaseRecord& phase, double seconds, double peak_flops, bool oversubscribed) {
  const double achieved = static_cast<double>(phase.model_flops_total) / seconds;
  phase.mfu = achieved / peak_flops;
  if (*phase.mfu <= 1.0) return;
  if (oversubscribed) {  // replicas that ran one after the other count as if at once
    phase.mfu.reset();
    return;
  }
  throw Error(ExitCode::runtime_failure,
              fmt::format("MFU above 100 %: {} makes {:.4g} model FLOP/s on devices whose dense "
                          "peak is taken to be {:.4g} FLOP/s: the peak is wrong",
                          phase_name(phase.phase),
                          achieved,
                          peak_flops));
}

void add_roofline(PhaseRecord& phase, double seconds, double peak_flops, double bytes_per_s) {
  const int64_t n_bytes = phase.weight_bytes_total + phase.kv_bytes_total;
  if (n_bytes == 0) return;
  RooflineRecord roofline;
  roofline.intensity_flop_per_byte =
      static_cast<double>(phase.flops_total) / static_cast<double>(n_bytes);
  roofline.ridge_flop_per_byte = peak_flops / bytes_per_s;
  roofline.attainable_flops = std::min(peak_flops, bytes_per_s * roofline.intensity_flop_per_byte);
  roofline.achieved_flops = static_cast<double>(phase.flops_total) / seconds;
  roofline.regime =
      roofline.intensity_flop_per_byte < roofline.ridge_flop_per_byte ? "memory" : "compute";
  phase.roofline = roofline;
}

}  // namespace

std::vector<PeakRecord> peak_records(const AnalysisInput& input) {
  std::vector<PeakRecord> peaks;
  std::map<std::string, size_t> index;
  for (int rank = 0; rank < input.mesh.world_size(); ++rank) {
    const RankPeaks& mine = input.peaks[static_cast<size_t>(rank)];
    const std::string name = domain_name(input, rank);
    const auto [at, added] = index.try_emplace(name, peaks.size());
    if (added) {
      peaks.emplace_back();
      peaks.back().memory_domain = name;
      peaks.back().read_bytes_per_s.repeats.resize(mine.read_bytes_per_s.size());
    }
    PeakRecord& peak = peaks[at->second];
    if (peak.read_bytes_per_s.repeats.size() != mine.read_bytes_per_s.size()) {
      throw Error(
          ExitCode::internal_error,
          fmt::format("rank {} took {} bandwidth samples, others of memory domain {} took {}",
                      rank,
                      mine.read_bytes_per_s.size(),
                      name,
                      peak.read_bytes_per_s.repeats.size()));
    }
    for (size_t i = 0; i < mine.read_bytes_per_s.size(); ++i) {
      peak.read_bytes_per_s.repeats[i] += mine.read_bytes_per_s[i];
    }
    peak.ranks.push_back(rank);
    peak.peak_flops += mine.peak_flops;
    peak.llc_bytes = std::max(peak.llc_bytes, mine.llc_bytes);
  }
  return peaks;
}

void add_efficiency(const AnalysisInput& input, PhaseRecord& phase, RunRecord& record) {
  if (phase.step_ms.empty()) return;
  const double seconds = phase.duration_s.median();
  double peak_flops = 0.0;
  double bytes_per_s = 0.0;
  for (const PeakRecord& peak : record.peaks) {
    phase.memory_domains.push_back(domain_of(input, phase, peak, seconds));
    phase.cache_resident = phase.cache_resident || phase.memory_domains.back().cache_resident;
    peak_flops += peak.peak_flops;
    bytes_per_s += peak.read_bytes_per_s.median();
  }
  if (seconds <= 0.0) return;
  add_mfu(phase, seconds, peak_flops, is_oversubscribed(input.run));
  add_roofline(phase, seconds, peak_flops, bytes_per_s);
  if (phase.cache_resident) return;
  phase.mbu = static_cast<double>(phase.weight_bytes_total + phase.kv_bytes_total) /
              (seconds * bytes_per_s);
}

}  // namespace testbed
