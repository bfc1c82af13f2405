// The matrix product of kernels/cpu beside its peers, alternately in one process, so that both meet
// the same machine: the read loop for decode (M = 1), oneDNN for prefill (M = 512; int8 and int4
// weights beside its u8s8 product, which has no scales to apply). Prints the median of the rounds'
// ratios and their quartiles: 1.00 is the peer's speed, above is faster. --json has the same and
// every round. Exits with 1 if a result is wrong.
//   bench_cpu_kernels [--rounds 15] [--filter TEXT: only lines that contain it] [--json FILE]
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/onednn_product.hpp"
#include "kernels/base/clock.hpp"
#include "kernels/base/float16.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/packed_matrix.hpp"
#include "kernels/cpu/probes.hpp"
#include "kernels/cpu/thread_pool.hpp"
#include "kernels/quantise.hpp"

namespace testbed::cpu {
namespace {

struct Options {
  int n_rounds = 15;
  std::string filter;
  std::string json;
};

struct Shape2 {
  int64_t m, n, k;
};

struct Bench {
  Isa isa;
  DType x;
  WeightFormat w;
  DType y;
  Shape2 shape;
  int n_threads;
  std::string name(const char* peer) const {
    return fmt::format("{}: {} x {} w {} y {} M={} {}x{} threads={}",
                       peer,
                       isa_name(isa),
                       dtype_name(x),
                       format_name(w),
                       dtype_name(y),
                       shape.m,
                       shape.n,
                       shape.k,
                       n_threads);
  }
};

// Reproducible numbers.
class Sequence {
 public:
  explicit Sequence(uint64_t seed) : state_(seed * 2 + 1) {}
  int32_t bits() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int32_t>(state_ >> 32);
  }
  float value() { return static_cast<float>(bits()) * 0x1p-31F; }  // in [-1, 1)

 private:
  uint64_t state_;
};

Tensor random_tensor(DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  Tensor t(dtype, {rows, cols});
  Sequence sequence(seed);
  for (int64_t i = 0; i < t.n_elements(); ++i) {
    const float x = sequence.value();
    if (dtype == DType::F32) {
      t.as<float>()[i] = x;
    } else {
      t.as<bf16>()[i] = to_bf16(x);
    }
  }
  return t;
}

Tensor as_f32(TensorView t) {
  if (t.dtype() == DType::F32) {
    Tensor copy(DType::F32, t.shape());
    std::copy_n(t.as<float>(), t.n_elements(), copy.as<float>());
    return copy;
  }
  Tensor out(DType::F32, t.shape());
  for (int64_t i = 0; i < t.n_elements(); ++i) out.as<float>()[i] = to_f32(t.as<bf16>()[i]);
  return out;
}

// Weights of one format, and what they stand for.
struct Weights {
  Weights(const WeightFormat& format, int64_t n, int64_t k) : packed(n, k, format) {
    if (!format.is_quantised()) {
      const Tensor plain = random_tensor(format.dtype, n, k, 2);
      packed.store_rows(0, plain);
      values = as_f32(plain);
      return;
    }
    const QuantisedTensor codes = random_codes(format, n, k);
    packed.store_rows(0, codes);
    values = Tensor(DType::F32, {n, k});
    dequantise(codes, values);
  }
  // Codes, scales and offsets of every kind; values within about +-1.
  static QuantisedTensor random_codes(const WeightFormat& format, int64_t n, int64_t k) {
    QuantisedTensor t(format, n, k);
    Sequence sequence(2);
    const bool wide = format.coding == WeightCoding::int8;
    CHECK(wide || format.coding == WeightCoding::int4);
    for (int64_t i = 0; i < n * k; ++i) {
      const int32_t bits = sequence.bits();
      t.codes.as<int8_t>()[i] = static_cast<int8_t>(wide ? (bits >> 24) | 1 : (bits >> 28) & 15);
    }
    for (int64_t i = 0; i < t.scales.n_elements(); ++i) {
      const float scale = (1.5F + 0.5F * sequence.value()) / (wide ? 256.0F : 16.0F);
      if (format.scale_dtype == DType::F32) {
        t.scales.as<float>()[i] = scale;
      } else {
        t.scales.as<f16>()[i] = to_f16(scale);
      }
    }
    for (int64_t i = 0; i < n * format.n_groups(k); ++i) {
      if (format.offset == WeightOffset::zero_point)
        t.offsets.as<int8_t>()[i] = static_cast<int8_t>((sequence.bits() >> 28) & 15);
      if (format.offset == WeightOffset::minimum)
        t.offsets.as<f16>()[i] = to_f16(sequence.value() - 0.5F);
    }
    return t;
  }

  PackedMatrix packed;
  Tensor values;  // F32 [n, k]
};

struct RowSize {
  double norm = 0.0;      // square root of the sum of squares
  double sum = 0.0;       // of magnitudes
  double greatest = 0.0;  // magnitude
};

std::vector<RowSize> row_sizes(TensorView t) {
  std::vector<RowSize> sizes(static_cast<size_t>(t.n_rows()));
  const int64_t k = t.row_elements();
  for (int64_t r = 0; r < t.n_rows(); ++r) {
    RowSize& size = sizes[static_cast<size_t>(r)];
    for (int64_t i = 0; i < k; ++i) {
      const double v = std::abs(static_cast<double>(t.as<float>()[r * k + i]));
      size.norm += v * v;
      size.sum += v;
      size.greatest = std::max(size.greatest, v);
    }
    size.norm = std::sqrt(size.norm);
  }
  return sizes;
}

// Against oneDNN's product of the same values in f32. Two f32 sums of k products are each within
// (k + 2) 2^-24 sum|x w| of the true one, and sum|x w| <= |x| |w|; rounding y to bf16 adds 2^-8 of
// it. Over quantised weights x may be rounded to 8 bits by groups: by at most max|x| / 254 each.
bool agrees(const Bench& bench, TensorView x, const Weights& w, TensorView y) {
  const Tensor x_values = as_f32(x);
  const Tensor y_values = as_f32(y);
  const Tensor expected(DType::F32, y.shape());
  OneDnnProduct(x_values, w.values, expected).run();
  const std::vector<RowSize> x_sizes = row_sizes(x_values);
  const std::vector<RowSize> w_sizes = row_sizes(w.values);
  const int64_t n = bench.shape.n;
  for (int64_t i = 0; i < y.n_elements(); ++i) {
    const auto a = static_cast<double>(y_values.as<float>()[i]);
    const auto b = static_cast<double>(expected.as<float>()[i]);
    const RowSize& of_x = x_sizes[static_cast<size_t>(i / n)];
    const RowSize& of_w = w_sizes[static_cast<size_t>(i % n)];
    double bound = 2.0 * static_cast<double>(bench.shape.k + 2) * 0x1p-24 * of_x.norm * of_w.norm;
    if (bench.w.is_quantised()) bound += of_x.greatest / 254.0 * of_w.sum;
    if (bench.y == DType::BF16) bound += std::abs(a) * 0x1p-8;
    if (!(std::abs(a - b) <= bound)) {
      fmt::print("WRONG: element {} is {}, not {} +- {}\n", i, a, b, bound);
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

class Benchmarks {
 public:
  explicit Benchmarks(Options options) : options_(std::move(options)) {}
  bool run_all();
  void write_json() const {
    if (options_.json.empty()) return;
    std::ofstream file(options_.json);
    file << results_.dump(1) << '\n';
    if (!file) throw std::runtime_error("cannot write " + options_.json);
  }

 private:
  bool matrix_vector(const Bench& bench);
  bool matrix_product(const Bench& bench);
  bool wanted(const std::string& name) const {
    return name.find(options_.filter) != std::string::npos;
  }
  template <typename Peer, typename Ours>
  void alternate(const Bench& bench,
                 const char* peer_name,
                 double work,
                 const char* unit,
                 const Peer& peer,
                 const Ours& ours);

  Options options_;
  nlohmann::json results_ = nlohmann::json::array();
};

// peer and ours return the seconds of one run.
template <typename Peer, typename Ours>
void Benchmarks::alternate(const Bench& bench,
                           const char* peer_name,
                           double work,
                           const char* unit,
                           const Peer& peer,
                           const Ours& ours) {
  std::vector<double> ratios;
  std::vector<double> rates;
  for (int i = 0; i < options_.n_rounds; ++i) {
    const double peer_s = peer();
    const double ours_s = ours();
    ratios.push_back(peer_s / ours_s);
    rates.push_back(work / ours_s * 1e-9);
  }
  fmt::print("{:<72} {:5.3f} [{:5.3f} {:5.3f}] {:7.1f} {}\n",
             bench.name(peer_name),
             quantile(ratios, 0.5),
             quantile(ratios, 0.25),
             quantile(ratios, 0.75),
             quantile(rates, 0.5),
             unit);
  std::fflush(stdout);
  results_.push_back({{"peer", peer_name},
                      {"isa", isa_name(bench.isa)},
                      {"x", dtype_name(bench.x)},
                      {"weights", format_name(bench.w)},
                      {"m", bench.shape.m},
                      {"n", bench.shape.n},
                      {"k", bench.shape.k},
                      {"threads", bench.n_threads},
                      {"ratios", ratios},
                      {"rate", quantile(rates, 0.5)},
                      {"unit", unit}});
}

// Decode against the read loop. Both go round memory of four times the last-level cache at least,
// so neither finds its bytes there: ours through as many copies of the matrix as that takes.
bool Benchmarks::matrix_vector(const Bench& bench) {
  constexpr const char* peer = "read loop";
  if (!wanted(bench.name(peer))) return true;
  const auto [m, n, k] = bench.shape;
  omp_set_num_threads(bench.n_threads);
  ThreadPool pool(bench.n_threads, true);
  const Tensor x = random_tensor(bench.x, m, k, 1);
  const Tensor y(bench.y, {m, n});
  std::vector<Weights> copies;
  copies.emplace_back(bench.w, n, k);
  linear(copies[0].packed, x, nullptr, y, pool, bench.isa);
  if (!agrees(bench, x, copies[0], y)) return false;
  copies[0].values = Tensor();
  const int64_t n_bytes = copies[0].packed.n_panels() * copies[0].packed.panel_bytes();
  const int64_t n_copies = (4 * last_level_cache_bytes() + n_bytes - 1) / n_bytes;
  copies.reserve(static_cast<size_t>(n_copies));
  while (static_cast<int64_t>(copies.size()) < n_copies) {
    copies.emplace_back(bench.w, n, k);
    copies.back().values = Tensor();
  }
  const auto read_bytes = static_cast<double>(n_copies * n_bytes);
  const Tensor buffer(DType::I8, {n_copies * n_bytes});
  constexpr int passes = 2;
  alternate(
      bench,
      peer,
      read_bytes,
      "GB/s",
      [&] { return read_bytes / read_bandwidth(buffer, 0.02, pool, best_isa()); },
      [&] {
        return seconds([&] {
                 for (int i = 0; i < passes; ++i) {
                   for (const Weights& w : copies) linear(w.packed, x, nullptr, y, pool, bench.isa);
                 }
               }) /
               passes;
      });
  return true;
}

// Prefill against oneDNN, which always has the processor's best instruction set.
bool Benchmarks::matrix_product(const Bench& bench) {
  const bool quantised = bench.w.is_quantised();
  const char* peer_name = quantised ? "oneDNN u8s8" : "oneDNN";
  if (!wanted(bench.name(peer_name))) return true;
  const auto [m, n, k] = bench.shape;
  omp_set_num_threads(bench.n_threads);
  ThreadPool pool(bench.n_threads, true);
  const Tensor x = random_tensor(bench.x, m, k, 1);
  const Weights w(bench.w, n, k);
  const Tensor y(bench.y, {m, n});
  const auto ours = [&] { linear(w.packed, x, nullptr, y, pool, bench.isa); };
  ours();
  if (!agrees(bench, x, w, y)) return false;
  const Tensor peer_x = quantised ? Tensor(DType::I8, {m, k}) : random_tensor(bench.x, m, k, 1);
  const Tensor peer_w =
      quantised ? Tensor(DType::I8, {n, k}) : random_tensor(bench.w.dtype, n, k, 2);
  const Tensor peer_y(quantised ? DType::I32 : bench.y, {m, n});
  OneDnnProduct peer(peer_x, peer_w, peer_y);
  const auto flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  // An untimed run first: the other library's threads may still be spinning.
  alternate(
      bench,
      peer_name,
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

bool Benchmarks::run_all() {
  const Shape2 decode[] = {{1, 4096, 14336}, {1, 8192, 8192}, {1, 14336, 4096}};
  const Shape2 prefill[] = {{512, 4096, 4096}, {512, 4096, 14336}, {512, 14336, 4096}};
  const auto bf = DType::BF16;
  const auto f32 = DType::F32;
  const WeightFormat quantised[] = {
      weight_formats::int8_g32, weight_formats::int4_g32, weight_formats::q4_0};
  bool right = true;
  for (const int threads : {1, 2}) {
    for (const Isa isa : {Isa::avx512_bf16, Isa::avx512, Isa::avx2, Isa::portable}) {
      if (isa > best_isa()) continue;
      for (const Shape2& shape : decode) {
        right = matrix_vector({isa, bf, bf, bf, shape, threads}) && right;
        for (const WeightFormat& format : quantised)
          right = matrix_vector({isa, bf, format, bf, shape, threads}) && right;
      }
      right = matrix_vector({isa, f32, bf, f32, decode[1], threads}) && right;
      right = matrix_vector({isa, f32, f32, f32, decode[1], threads}) && right;
    }
    if (best_isa() == Isa::avx512_bf16) {
      for (const Shape2& shape : prefill) {
        right = matrix_product({best_isa(), bf, bf, bf, shape, threads}) && right;
        for (const WeightFormat& format : quantised)
          right = matrix_product({best_isa(), bf, format, bf, shape, threads}) && right;
      }
    }
    for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::portable}) {
      if (isa > best_isa()) continue;
      const Shape2 shape = isa == Isa::portable ? Shape2{64, 4096, 4096} : prefill[0];
      right = matrix_product({isa, f32, f32, f32, shape, threads}) && right;
    }
  }
  return right;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--rounds") {
      options.n_rounds = std::max(1, std::atoi(argv[i + 1]));
    } else if (name == "--filter") {
      options.filter = argv[i + 1];
    } else if (name == "--json") {
      options.json = argv[i + 1];
    } else {
      throw std::runtime_error("unknown option " + name);
    }
  }
  if (argc % 2 == 0) throw std::runtime_error(fmt::format("{} has no value", argv[argc - 1]));
  return options;
}

}  // namespace
}  // namespace testbed::cpu

int main(int argc, char** argv) {
  try {
    testbed::cpu::Benchmarks benchmarks(testbed::cpu::parse(argc, argv));
    const bool right = benchmarks.run_all();
    benchmarks.write_json();
    return right ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_cpu_kernels: %s\n", error.what());
    return 1;
  }
}
