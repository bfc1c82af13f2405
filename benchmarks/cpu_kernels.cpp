// The matrix product of kernels/cpu beside its peers, alternately in one process, so that both meet
// the same machine: the read loop for decode (M = 1, and up to 64 rows that read the weights once),
// oneDNN for prefill (M = 512; int8 and int4 weights beside its u8s8 product, which has no scales
// to apply). At the processor's best level of instructions, and with a third of the rounds at each
// lesser one; the peers always have the best. Prints the median of the rounds' ratios and their
// quartiles: 1.00 is the peer's speed, above is faster. --json has the same, every round and the
// best level. Exits with 1 if a result is wrong.
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
#include <optional>
#include <span>
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

constexpr int thread_counts[] = {1, 2};

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

// Weights of one format, to be packed as often as wanted.
class Weights {
 public:
  Weights(const WeightFormat& format, int64_t n, int64_t k) : format_(format), n_(n), k_(k) {
    if (format.is_quantised()) {
      codes_ = random_codes(format, n, k);
    } else {
      plain_ = random_tensor(format.dtype, n, k, 2);
    }
  }
  PackedMatrix packed() const {
    PackedMatrix matrix(n_, k_, format_);
    if (format_.is_quantised()) {
      matrix.store_rows(0, codes_);
    } else {
      matrix.store_rows(0, plain_);
    }
    return matrix;
  }
  // What they stand for, F32 [n, k].
  Tensor values() const {
    if (!format_.is_quantised()) return as_f32(plain_);
    Tensor values(DType::F32, {n_, k_});
    dequantise(codes_, values);
    return values;
  }

 private:
  // Codes, scales and offsets of every kind; values within about +-1.
  static QuantisedTensor random_codes(const WeightFormat& format, int64_t n, int64_t k);
  static int8_t random_code(WeightCoding coding, int32_t bits);

  WeightFormat format_;
  int64_t n_, k_;
  Tensor plain_;
  QuantisedTensor codes_;
};

int8_t Weights::random_code(WeightCoding coding, int32_t bits) {
  if (coding == WeightCoding::int4) return static_cast<int8_t>((bits >> 28) & 15);
  const int32_t code = bits >> 24;
  if (coding == WeightCoding::int8) return static_cast<int8_t>(code | 1);
  CHECK(coding == WeightCoding::fp8);
  const bool is_nan = (code & 0x7f) == 0x7f;
  return static_cast<int8_t>(is_nan ? code ^ 1 : code);
}

QuantisedTensor Weights::random_codes(const WeightFormat& format, int64_t n, int64_t k) {
  QuantisedTensor t(format, n, k);
  Sequence sequence(2);
  for (int64_t i = 0; i < n * k; ++i) {
    t.codes.as<int8_t>()[i] = random_code(format.coding, sequence.bits());
  }
  const float largest_code = format.coding == WeightCoding::int8  ? 128.0F
                             : format.coding == WeightCoding::fp8 ? 448.0F
                                                                  : 8.0F;
  const int64_t n_groups = format.n_groups(k);
  const int64_t rows_that_share = format.group_rows == 0 ? n : format.group_rows;
  for (int64_t i = 0; i < n * n_groups; ++i) {
    const int64_t row = i / n_groups;
    const int64_t first = row / rows_that_share * rows_that_share * n_groups + i % n_groups;
    const float scale = (1.5F + 0.5F * sequence.value()) / (2.0F * largest_code);
    if (format.scale_dtype == DType::F32) {
      float* const scales = t.scales.as<float>();
      scales[i] = first == i ? scale : scales[first];
    } else {
      CHECK(rows_that_share == 1);
      t.scales.as<f16>()[i] = to_f16(scale);
    }
    if (format.offset == WeightOffset::zero_point)
      t.offsets.as<int8_t>()[i] = random_code(WeightCoding::int4, sequence.bits());
    if (format.offset == WeightOffset::minimum)
      t.offsets.as<f16>()[i] = to_f16(sequence.value() - 0.5F);
  }
  return t;
}

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

// What weights stand for, F32 [n, k], and its rows' sizes.
struct Values {
  Values() = default;
  explicit Values(Tensor values) : tensor(std::move(values)), sizes(row_sizes(tensor)) {}

  Tensor tensor;
  std::vector<RowSize> sizes;
};

// Against oneDNN's product of the same values in f32. Two f32 sums of k products are each within
// (k + 2) 2^-24 sum|x w| of the true one, and sum|x w| <= |x| |w|; rounding y to bf16 adds 2^-8 of
// it. Over quantised weights x may be rounded to 8 bits by groups: by at most max|x| / 254 each.
bool agrees(const Bench& bench, TensorView x, const Values& w, TensorView y) {
  const Tensor x_values = as_f32(x);
  const Tensor y_values = as_f32(y);
  const Tensor expected(DType::F32, y.shape());
  OneDnnProduct(x_values, w.tensor, expected).run();
  const std::vector<RowSize> x_sizes = row_sizes(x_values);
  const int64_t n = bench.shape.n;
  for (int64_t i = 0; i < y.n_elements(); ++i) {
    const auto a = static_cast<double>(y_values.as<float>()[i]);
    const auto b = static_cast<double>(expected.as<float>()[i]);
    const RowSize& of_x = x_sizes[static_cast<size_t>(i / n)];
    const RowSize& of_w = w.sizes[static_cast<size_t>(i % n)];
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

// Of one format and shape: as many packed copies as go round four times the last-level cache, and
// as many bytes for the read loop.
struct DecodeWeights {
  DecodeWeights(const WeightFormat& format, int64_t n, int64_t k) {
    const Weights weights(format, n, k);
    values = Values(weights.values());
    copies.push_back(weights.packed());
    const int64_t matrix_bytes = copies[0].n_panels() * copies[0].panel_bytes();
    const int64_t n_copies = (4 * last_level_cache_bytes() + matrix_bytes - 1) / matrix_bytes;
    copies.reserve(static_cast<size_t>(n_copies));
    while (static_cast<int64_t>(copies.size()) < n_copies) copies.push_back(weights.packed());
    n_bytes = n_copies * matrix_bytes;
    buffer = Tensor(DType::I8, {n_bytes});
  }

  Values values;
  std::vector<PackedMatrix> copies;
  int64_t n_bytes = 0;
  Tensor buffer;
};

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
    const nlohmann::json all = {{"best_isa", isa_name(best_isa())}, {"results", results_}};
    std::ofstream file(options_.json);
    file << all.dump(1) << '\n';
    if (!file) throw std::runtime_error("cannot write " + options_.json);
  }

 private:
  // Of one format and shape, whose weights are made once: a level, the dtype of x and y, rows.
  struct Case {
    Isa isa;
    DType x;
    int64_t m;
  };
  bool decode();
  bool prefill();
  bool matrix_vectors(const WeightFormat& format,
                      int64_t n,
                      int64_t k,
                      std::span<const Case> cases);
  bool matrix_vector(const Bench& bench, const DecodeWeights& weights);
  bool matrix_product(const Bench& bench);
  // A third at lesser levels and of what stands between decode and prefill.
  int rounds_of(const Bench& bench) const {
    const bool between = bench.shape.m > 1 && bench.shape.m < 512;
    return bench.isa == best_isa() && !between ? options_.n_rounds : (options_.n_rounds + 2) / 3;
  }
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
  for (int i = 0; i < rounds_of(bench); ++i) {
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

constexpr const char* read_loop = "read loop";

// Decode against the read loop: m rows that read the weights once. Both go round memory of four
// times the last-level cache at least, so neither finds its bytes there.
bool Benchmarks::matrix_vector(const Bench& bench, const DecodeWeights& weights) {
  const auto [m, n, k] = bench.shape;
  omp_set_num_threads(bench.n_threads);
  ThreadPool pool(bench.n_threads, true);
  const Tensor x = random_tensor(bench.x, m, k, 1);
  const Tensor y(bench.y, {m, n});
  linear(weights.copies[0], x, nullptr, y, pool, bench.isa);
  if (!agrees(bench, x, weights.values, y)) return false;
  const auto read_bytes = static_cast<double>(weights.n_bytes);
  const int passes = m == 1 ? 2 : 1;
  alternate(
      bench,
      read_loop,
      read_bytes,
      "GB/s",
      [&] { return read_bytes / read_bandwidth(weights.buffer, 0.02, pool, best_isa()); },
      [&] {
        return seconds([&] {
                 for (int i = 0; i < passes; ++i) {
                   for (const PackedMatrix& w : weights.copies) {
                     linear(w, x, nullptr, y, pool, bench.isa);
                   }
                 }
               }) /
               passes;
      });
  return true;
}

bool Benchmarks::matrix_vectors(const WeightFormat& format,
                                int64_t n,
                                int64_t k,
                                std::span<const Case> cases) {
  std::optional<DecodeWeights> weights;
  bool right = true;
  for (const int n_threads : thread_counts) {
    for (const auto& [isa, x, m] : cases) {
      const Bench bench{isa, x, format, x, {m, n, k}, n_threads};
      if (!wanted(bench.name(read_loop))) continue;
      if (!weights) weights.emplace(format, n, k);
      right = matrix_vector(bench, *weights) && right;
    }
  }
  return right;
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
  const Weights weights(bench.w, n, k);
  const PackedMatrix packed = weights.packed();
  const Tensor y(bench.y, {m, n});
  const auto ours = [&] { linear(packed, x, nullptr, y, pool, bench.isa); };
  ours();
  if (!agrees(bench, x, Values(weights.values()), y)) return false;
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

std::vector<Isa> lesser_isas() {
  std::vector<Isa> lesser;
  for (const Isa isa : {Isa::avx512_vnni, Isa::avx512, Isa::avx2, Isa::portable}) {
    if (isa < best_isa()) lesser.push_back(isa);
  }
  return lesser;
}

bool Benchmarks::decode() {
  using namespace weight_formats;
  constexpr auto bf = DType::BF16;
  constexpr auto f32 = DType::F32;
  const Case alone[] = {{best_isa(), bf, 1}};
  const Case of_f32[] = {{best_isa(), f32, 1}};
  std::vector<Case> all;
  for (const int64_t m : {1, 4, 8, 16, 64}) all.push_back({best_isa(), bf, m});
  for (const Isa isa : lesser_isas()) all.push_back({isa, bf, 1});

  constexpr int64_t side = 8192;
  bool right = true;
  for (const WeightFormat& format : {WeightFormat(bf), int8_g32, q4_0}) {
    right = matrix_vectors(format, side, side, all) && right;
    right = matrix_vectors(format, 4096, 14336, alone) && right;
    right = matrix_vectors(format, 14336, 4096, alone) && right;
  }
  right = matrix_vectors(int4_g32, side, side, alone) && right;
  right = matrix_vectors(int4_g32, 4096, 14336, alone) && right;
  right = matrix_vectors(int4_g32, 14336, 4096, alone) && right;
  for (const WeightFormat& format :
       {int8_row, int8_g128, int4_g128, q4_1, fp8_tensor, fp8_row, fp8_block128}) {
    right = matrix_vectors(format, side, side, alone) && right;
  }
  right = matrix_vectors(bf, side, side, of_f32) && right;
  return matrix_vectors(f32, side, side, of_f32) && right;
}

bool Benchmarks::prefill() {
  using namespace weight_formats;
  constexpr auto bf = DType::BF16;
  constexpr auto f32 = DType::F32;
  constexpr Shape2 square{512, 4096, 4096};
  const Isa best = best_isa();
  std::vector<Isa> isas = lesser_isas();
  isas.insert(isas.begin(), best);
  bool right = true;
  for (const int n_threads : thread_counts) {
    if (best == Isa::avx512_bf16) {  // without, oneDNN has no such product to compare with
      for (const Shape2& shape : {square, Shape2{512, 4096, 14336}, Shape2{512, 14336, 4096}})
        right = matrix_product({best, bf, bf, bf, shape, n_threads}) && right;
    }
    for (const Isa isa : isas) {
      const Shape2 shape = isa == Isa::portable ? Shape2{16, square.n, square.k} : square;
      right = matrix_product({isa, f32, f32, f32, shape, n_threads}) && right;
      for (const WeightFormat& format : {int8_g32, int4_g32, q4_0})
        right = matrix_product({isa, bf, format, bf, shape, n_threads}) && right;
    }
  }
  return right;
}

bool Benchmarks::run_all() {
  const bool right = decode();
  return prefill() && right;
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
