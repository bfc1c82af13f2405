#include "runtime/plan/chip.hpp"

#include <set>

namespace testbed::plan {

int64_t warp_read_bytes(int64_t element_bytes, int64_t stride_bytes) {
  std::set<int64_t> sectors;
  for (int64_t lane = 0; lane < warp_lanes; ++lane) {
    const int64_t begin = lane * stride_bytes;
    const int64_t last = begin + element_bytes - 1;
    for (int64_t s = begin / sector_bytes; s <= last / sector_bytes; ++s) sectors.insert(s);
  }
  return static_cast<int64_t>(sectors.size()) * sector_bytes;
}

double divergence_efficiency(int64_t n_ways) { return 1.0 / static_cast<double>(n_ways); }

int64_t resident_threads(const ChipSpec& chip) { return chip.n_sm * chip.threads_per_sm; }
int64_t resident_warps(const ChipSpec& chip) { return resident_threads(chip) / warp_lanes; }
int64_t register_bytes(const ChipSpec& chip) { return chip.n_sm * chip.registers_per_sm * 4; }

int64_t warps_of_block(int64_t n_threads) { return (n_threads + warp_lanes - 1) / warp_lanes; }
int64_t idle_lanes_of_block(int64_t n_threads) {
  return warps_of_block(n_threads) * warp_lanes - n_threads;
}

}  // namespace testbed::plan
