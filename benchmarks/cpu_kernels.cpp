// The matrix product of kernels/cpu beside its peers, alternately in one process, so that both meet
// the same machine: the read loop for decode (M = 1), oneDNN for prefill (M = 512). Prints the
// median of the rounds' ratios and their quartiles: 1.00 is the peer's speed, above is faster.
// Exits with 1 if a result is wrong.
//   bench_cpu_kernels [ROUNDS=15] [FILTER: only lines that contain it]
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/base/clock.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/packed_matrix.hpp"
#include "kernels/cpu/probes.hpp"
#include "kernels/cpu/thread_pool.hpp"

namespace testbed::cpu {
namespace {

struct Options {
  int n_rounds = 15;
  std::string filter;
};

struct Shape2 {
  int64_t m, n, k;
};

float value_of(TensorView t, int64_t i) {
  return t.dtype() == DType::F32 ? t.as<float>()[i] : to_f32(t.as<bf16>()[i]);
}

// Reproducible values in [-1, 1).
Tensor random_tensor(DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  Tensor t(dtype, {rows, cols});
  uint64_t state = seed * 2 + 1;
  for (int64_t i = 0; i < t.n_elements(); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const float x = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31F;
    if (dtype == DType::F32) {
      t.as<float>()[i] = x;
    } else {
      t.as<bf16>()[i] = to_bf16(x);
    }
  }
  return t;
}

// y = x W^T with oneDNN, weights in the layout that it prefers.
class OneDnn {
 public:
  OneDnn(TensorView x, TensorView w, TensorView y)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using Memory = dnnl::memory;
    const int64_t m = x.n_rows();
    const int64_t n = w.n_rows();
    const int64_t k = x.row_elements();
    const auto type = [](DType dtype) {
      return dtype == DType::F32 ? Memory::data_type::f32 : Memory::data_type::bf16;
    };
    const Memory::desc x_desc({m, k}, type(x.dtype()), Memory::dims{k, 1});
    const Memory::desc w_plain({k, n}, type(w.dtype()), Memory::dims{1, k});
    const Memory::desc w_any({k, n}, type(w.dtype()), Memory::format_tag::any);
    const Memory::desc y_desc({m, n}, type(y.dtype()), Memory::dims{n, 1});
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(x_desc, w_any, y_desc), engine_);
    matmul_ = dnnl::matmul(desc);
    const Memory weights(desc.weights_desc(), engine_);
    Memory plain(w_plain, engine_, w.data());
    Memory packed = weights;
    dnnl::reorder(plain, packed).execute(stream_, plain, packed);
    stream_.wait();
    args_ = {{DNNL_ARG_SRC, Memory(x_desc, engine_, x.data())},
             {DNNL_ARG_WEIGHTS, packed},
             {DNNL_ARG_DST, Memory(y_desc, engine_, y.data())}};
  }
  void run() {
    matmul_.execute(stream_, args_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> args_;
};

std::vector<double> row_norms(TensorView t) {
  std::vector<double> norms(static_cast<size_t>(t.n_rows()));
  const int64_t k = t.row_elements();
  for (int64_t r = 0; r < t.n_rows(); ++r) {
    double sum = 0.0;
    for (int64_t i = 0; i < k; ++i) {
      const double v = value_of(t, r * k + i);
      sum += v * v;
    }
    norms[static_cast<size_t>(r)] = std::sqrt(sum);
  }
  return norms;
}

// Two f32 sums of k products are each within (k + 2) 2^-24 sum|x w| of the true one, and sum|x w|
// <= |x| |w|; rounding to bf16 adds 2^-8 of the value to each.
bool agree(TensorView x, TensorView w, TensorView y, TensorView peer) {
  const std::vector<double> x_norms = row_norms(x);
  const std::vector<double> w_norms = row_norms(w);
  const int64_t n = w.n_rows();
  for (int64_t i = 0; i < y.n_elements(); ++i) {
    const double a = value_of(y, i);
    const double b = value_of(peer, i);
    const double magnitude =
        x_norms[static_cast<size_t>(i / n)] * w_norms[static_cast<size_t>(i % n)];
    double bound = 2.0 * static_cast<double>(x.row_elements() + 2) * 0x1p-24 * magnitude;
    if (y.dtype() == DType::BF16) bound += (std::abs(a) + std::abs(b)) * 0x1p-8;
    if (!(std::abs(a - b) <= bound)) {
      fmt::print("WRONG: element {} is {}, oneDNN has {}\n", i, a, b);
      return false;
    }
  }
  return true;
}

template <typename Work>
double seconds(const Work& work) {
  const int64_t begin = now_ns();
  work();
  return static_cast<double>(now_ns() - begin) * 1e-9;
}

double quantile(std::vector<double> sample, double q) {
  std::sort(sample.begin(), sample.end());
  return sample[static_cast<size_t>(std::lround(q * static_cast<double>(sample.size() - 1)))];
}

// peer and ours return the seconds of one run.
template <typename Peer, typename Ours>
void alternate(const Options& options,
               const std::string& name,
               double work,
               const char* unit,
               const Peer& peer,
               const Ours& ours) {
  std::vector<double> ratios;
  std::vector<double> rates;
  double best_peer = HUGE_VAL;
  double best_ours = HUGE_VAL;
  for (int i = 0; i < options.n_rounds; ++i) {
    const double peer_s = peer();
    const double ours_s = ours();
    best_peer = std::min(best_peer, peer_s);
    best_ours = std::min(best_ours, ours_s);
    ratios.push_back(peer_s / ours_s);
    rates.push_back(work / ours_s);
  }
  fmt::print("{:<52} {:5.3f} [{:5.3f} {:5.3f}] best {:5.3f} {:7.1f} {}\n",
             name,
             quantile(ratios, 0.5),
             quantile(ratios, 0.25),
             quantile(ratios, 0.75),
             best_peer / best_ours,
             quantile(rates, 0.5) * 1e-9,
             unit);
  std::fflush(stdout);
}

bool wanted(const Options& options, const std::string& name) {
  return name.find(options.filter) != std::string::npos;
}

struct Bench {
  Isa isa;
  DType x, w, y;
  Shape2 shape;
  int n_threads;
  std::string name() const {
    return fmt::format("{} x {} w {} y {} M={} {}x{} threads={}",
                       isa_name(isa),
                       dtype_name(x),
                       dtype_name(w),
                       dtype_name(y),
                       shape.m,
                       shape.n,
                       shape.k,
                       n_threads);
  }
};

// Decode against the read loop over the same packed weights.
bool matrix_vector(const Options& options, const Bench& bench) {
  const std::string name = "read loop: " + bench.name();
  if (!wanted(options, name)) return true;
  const auto [m, n, k] = bench.shape;
  omp_set_num_threads(bench.n_threads);
  ThreadPool pool(bench.n_threads, true);
  const Tensor x = random_tensor(bench.x, m, k, 1);
  const Tensor y(bench.y, {m, n});
  PackedMatrix w(n, k, bench.w);
  {
    const Tensor plain = random_tensor(bench.w, n, k, 2);
    w.store_rows(0, plain);
    linear(w, x, nullptr, y, pool, bench.isa);
    if (bench.x == bench.w) {
      const Tensor peer(bench.y, {m, n});
      OneDnn(x, plain, peer).run();
      if (!agree(x, plain, y, peer)) return false;
    }
  }
  const TensorView bytes(const_cast<std::byte*>(w.panel(0)),
                         bench.w,
                         {w.n_panels() * PackedMatrix::panel_rows, w.padded_cols()});
  const auto n_bytes = static_cast<double>(bytes.n_bytes());
  constexpr int repeats = 3;
  alternate(
      options,
      name,
      n_bytes,
      "GB/s",
      [&] { return n_bytes / read_bandwidth(bytes, 0.02, pool, best_isa()); },
      [&] {
        return seconds([&] {
                 for (int i = 0; i < repeats; ++i) linear(w, x, nullptr, y, pool, bench.isa);
               }) /
               repeats;
      });
  return true;
}

// Prefill against oneDNN, which always has the processor's best instruction set.
bool matrix_product(const Options& options, const Bench& bench) {
  const std::string name = "oneDNN: " + bench.name();
  if (!wanted(options, name)) return true;
  const auto [m, n, k] = bench.shape;
  omp_set_num_threads(bench.n_threads);
  ThreadPool pool(bench.n_threads, true);
  const Tensor x = random_tensor(bench.x, m, k, 1);
  const Tensor plain = random_tensor(bench.w, n, k, 2);
  PackedMatrix w(n, k, bench.w);
  w.store_rows(0, plain);
  const Tensor y(bench.y, {m, n});
  const Tensor peer_y(bench.y, {m, n});
  OneDnn peer(x, plain, peer_y);
  const auto ours = [&] { linear(w, x, nullptr, y, pool, bench.isa); };
  peer.run();
  ours();
  if (!agree(x, plain, y, peer_y)) return false;
  const auto flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  // An untimed run first: the other library's threads may still be spinning.
  alternate(
      options,
      name,
      flops,
      "GFLOP/s",
      [&] {
        peer.run();
        return seconds([&] { peer.run(); });
      },
      [&] {
        ours();
        return seconds(ours);
      });
  return true;
}

bool run_all(const Options& options) {
  const Shape2 decode[] = {{1, 4096, 14336}, {1, 8192, 8192}, {1, 14336, 4096}};
  const Shape2 prefill[] = {{512, 4096, 4096}, {512, 4096, 14336}, {512, 14336, 4096}};
  const auto bf = DType::BF16;
  const auto f32 = DType::F32;
  bool right = true;
  for (const int threads : {1, 2}) {
    for (const Isa isa : {Isa::avx512_bf16, Isa::avx512, Isa::avx2, Isa::portable}) {
      if (isa > best_isa()) continue;
      for (const Shape2& shape : decode) {
        right = matrix_vector(options, {isa, bf, bf, bf, shape, threads}) && right;
      }
      right = matrix_vector(options, {isa, f32, bf, f32, decode[1], threads}) && right;
      right = matrix_vector(options, {isa, f32, f32, f32, decode[1], threads}) && right;
    }
    if (best_isa() == Isa::avx512_bf16) {
      for (const Shape2& shape : prefill) {
        right = matrix_product(options, {best_isa(), bf, bf, bf, shape, threads}) && right;
      }
    }
    for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::portable}) {
      if (isa > best_isa()) continue;
      const Shape2 shape = isa == Isa::portable ? Shape2{64, 4096, 4096} : prefill[0];
      right = matrix_product(options, {isa, f32, f32, f32, shape, threads}) && right;
    }
  }
  return right;
}

}  // namespace
}  // namespace testbed::cpu

int main(int argc, char** argv) {
  try {
    testbed::cpu::Options options;
    if (argc > 1) options.n_rounds = std::max(1, std::atoi(argv[1]));
    if (argc > 2) options.filter = argv[2];
    return testbed::cpu::run_all(options) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_cpu_kernels: %s\n", error.what());
    return 1;
  }
}
