// Timing of the probes' loops on all threads at once, and the last-level cache's size.
#include "kernels/cpu/probes.hpp"

#include <hwloc.h>

#include <algorithm>

#include "kernels/base/clock.hpp"
#include "kernels/cpu/probe_kernels.hpp"

namespace testbed::cpu {
namespace {

constexpr int64_t read_granule = 1024;

ReadLoop read_loop(Isa isa) {
  if (isa >= Isa::avx512) return read_avx512;
  return isa == Isa::avx2 ? read_avx2 : read_portable;
}

FlopLoop int8_loop(Isa isa) {
  if (isa >= Isa::avx512_vnni) return int8_avx512_vnni();
  if (isa == Isa::avx512) return int8_avx512();
  return isa == Isa::avx2 ? int8_avx2() : int8_portable();
}

FlopLoop flop_loop(DType operands, Isa isa) {
  if (operands == DType::I8) return int8_loop(isa);
  if (isa == Isa::avx512_bf16 && operands == DType::BF16) return flops_avx512_bf16();
  if (isa >= Isa::avx512) return flops_avx512();
  return isa == Isa::avx2 ? flops_avx2() : flops_portable();
}

// The compiler must believe that a result is used.
void keep(uint64_t value) { __asm__ volatile("" : : "r"(value)); }
void keep(float value) { __asm__ volatile("" : : "x"(value)); }

double seconds_of(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// Seconds that work(thread) takes on all threads, by the slowest.
template <typename Work>
double time_s(ThreadPool& pool, const Work& work) {
  const int64_t begin = now_ns();
  pool.run(work);
  return seconds_of(std::max<int64_t>(1, now_ns() - begin));
}

}  // namespace

double read_bandwidth(TensorView buffer, double duration_s, ThreadPool& pool, Isa isa) {
  CHECK(isa <= best_isa() && duration_s > 0);
  const ReadLoop loop = read_loop(isa);
  const int64_t n_threads = pool.n_threads();
  const int64_t thread_bytes = buffer.n_bytes() / n_threads / read_granule * read_granule;
  CHECK(thread_bytes > 0 && reinterpret_cast<uintptr_t>(buffer.data()) % 64 == 0);
  const auto* begin = static_cast<const std::byte*>(buffer.data());
  const auto pass = [&](int thread) { keep(loop(begin + thread * thread_bytes, thread_bytes)); };
  double n_bytes = 0;
  double elapsed_s = 0;
  while (elapsed_s < duration_s) {
    elapsed_s += time_s(pool, pass);
    n_bytes += static_cast<double>(thread_bytes * n_threads);
  }
  return n_bytes / elapsed_s;
}

double peak_flops(DType operands, double duration_s, ThreadPool& pool, Isa isa) {
  CHECK(isa <= best_isa() && duration_s > 0);
  CHECK(operands == DType::F32 || operands == DType::BF16 || operands == DType::I8);
  const FlopLoop loop = flop_loop(operands, isa);
  // Rounds of about a millisecond: long beside waking the threads, short beside a disturbance.
  int64_t n_steps = 1000;
  const auto round = [&](int) { keep(loop.run(n_steps)); };
  while (time_s(pool, round) < 1e-3 && n_steps < (int64_t{1} << 40)) n_steps *= 2;
  const double round_flops = static_cast<double>(n_steps * loop.flops_per_step) * pool.n_threads();
  double best = 0;
  for (double elapsed_s = 0; elapsed_s < duration_s;) {
    const double round_s = time_s(pool, round);
    best = std::max(best, round_flops / round_s);
    elapsed_s += round_s;
  }
  return best;
}

int64_t last_level_cache_bytes() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return 0;
  int64_t n_bytes = 0;
  if (hwloc_topology_load(topology) == 0) {
    constexpr hwloc_obj_type_t levels[] = {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L1CACHE};
    hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(topology);
    for (const hwloc_obj_type_t level : levels) {
      for (hwloc_obj_t cache = nullptr;
           (cache = hwloc_get_next_obj_by_type(topology, level, cache)) != nullptr;) {
        if (hwloc_bitmap_intersects(cache->cpuset, allowed) != 0) {
          n_bytes += static_cast<int64_t>(cache->attr->cache.size);
        }
      }
      if (n_bytes > 0) break;
    }
  }
  hwloc_topology_destroy(topology);
  return n_bytes;
}

}  // namespace testbed::cpu
