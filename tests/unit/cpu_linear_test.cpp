// The matrix product over packed weights, at every level of this processor, against sums in double;
// the thread pool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/errors.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/packed_matrix.hpp"
#include "kernels/cpu/thread_pool.hpp"
#include "tests/unit/isas.hpp"
#include "tests/unit/tolerance.hpp"

namespace testbed::cpu {
namespace {

// A reproducible value in [-1, 1), with full mantissas.
float noise(uint64_t index) {
  uint64_t z = index * 0x9e3779b97f4a7c15U + 0x1234567U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return static_cast<float>(static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1.0);
}

// Positive and negative f16 of any exponent below 1, subnormals too.
uint16_t noise_f16(uint64_t index) {
  const uint32_t bits = std::bit_cast<uint32_t>(noise(index));
  return static_cast<uint16_t>((bits >> 8) & 0xbbffU);
}

float element(TensorView t, int64_t i) {
  if (t.dtype() == DType::F32) return t.as<float>()[i];
  return t.dtype() == DType::F16 ? to_f32(t.as<f16>()[i]) : to_f32(t.as<bf16>()[i]);
}

std::vector<double> in_double(TensorView t) {
  std::vector<double> values(static_cast<size_t>(t.n_elements()));
  for (int64_t i = 0; i < t.n_elements(); ++i) values[static_cast<size_t>(i)] = element(t, i);
  return values;
}

Tensor random_tensor(DType dtype, int64_t n, int64_t k, uint64_t seed) {
  Tensor t(dtype, {n, k});
  for (int64_t i = 0; i < n * k; ++i) {
    const uint64_t at = (seed << 40) + static_cast<uint64_t>(i);
    if (dtype == DType::F32) t.as<float>()[i] = noise(at);
    if (dtype == DType::BF16) t.as<bf16>()[i] = to_bf16(noise(at));
    if (dtype == DType::F16) t.as<f16>()[i] = f16{noise_f16(at)};
  }
  return t;
}

PackedMatrix pack(TensorView w) {
  PackedMatrix packed(w.n_rows(), w.shape()[1], w.dtype());
  packed.store_rows(0, w);
  return packed;
}

struct Case {
  DType x, w, y;
  bool bias;
};
const Case cases[] = {
    {DType::BF16, DType::BF16, DType::F32, false},
    {DType::BF16, DType::BF16, DType::BF16, true},
    {DType::F32, DType::F32, DType::F32, true},
    {DType::F32, DType::F32, DType::BF16, false},
    {DType::F32, DType::BF16, DType::F32, false},
    {DType::F32, DType::BF16, DType::BF16, true},
    {DType::F32, DType::F16, DType::F32, true},
    {DType::F32, DType::F16, DType::BF16, false},
    {DType::BF16, DType::F32, DType::F32, true},
    {DType::BF16, DType::F16, DType::BF16, false},
};

std::string describe(Isa isa, const Case& c, int64_t m, int64_t n, int64_t k) {
  return std::string(isa_name(isa)) + " x " + std::string(dtype_name(c.x)) + " w " +
         std::string(dtype_name(c.w)) + " y " + std::string(dtype_name(c.y)) + " m " +
         std::to_string(m) + " n " + std::to_string(n) + " k " + std::to_string(k);
}

// Compares with sums in double. vdpbf16ps flushes what is below 2^-126: nothing, with these values.
void expect_close(TensorView x, TensorView w, const float* bias, TensorView y) {
  const int64_t m = x.n_rows();
  const int64_t n = w.n_rows();
  const int64_t k = w.row_elements();
  const std::vector<double> x_values = in_double(x);
  const std::vector<double> w_values = in_double(w);
  int64_t n_bad = 0;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      const double* x_row = x_values.data() + r * k;
      const double* w_row = w_values.data() + i * k;
      double sum = bias == nullptr ? 0.0 : bias[i];
      double x_squares = 0.0;
      double w_squares = 0.0;
      for (int64_t j = 0; j < k; ++j) {
        sum += x_row[j] * w_row[j];
        x_squares += x_row[j] * x_row[j];
        w_squares += w_row[j] * w_row[j];
      }
      const double in_f32 = tolerance::f32_dot(k, std::sqrt(x_squares), std::sqrt(w_squares)) +
                            tolerance::store(DType::F32, sum);  // of adding the bias
      const double bound = in_f32 + tolerance::store(y.dtype(), std::abs(sum) + in_f32);
      const double got = element(y, r * n + i);
      if (!(std::abs(got - sum) <= bound) && ++n_bad <= 3) {
        ADD_FAILURE() << "row " << r << " column " << i << ": " << got << ", not " << sum << " +- "
                      << bound;
      }
    }
  }
  EXPECT_EQ(n_bad, 0);
}

void check_product(Isa isa, const Case& c, int64_t m, int64_t n, int64_t k, ThreadPool& pool) {
  SCOPED_TRACE(describe(isa, c, m, n, k));
  const Tensor x = random_tensor(c.x, m, k, 1);
  const Tensor w = random_tensor(c.w, n, k, 2);
  const Tensor bias = random_tensor(DType::F32, 1, n, 3);
  const float* bias_data = c.bias ? bias.as<float>() : nullptr;
  // A guard row after y must stay untouched.
  const Tensor y = random_tensor(c.y, m + 1, n, 4);
  const Tensor before = random_tensor(c.y, m + 1, n, 4);
  linear(pack(w), x, bias_data, y.view().rows(0, m), pool, isa);
  expect_close(x, w, bias_data, y.view().rows(0, m));
  const TensorView guard = y.view().rows(m, 1);
  EXPECT_EQ(
      std::memcmp(
          guard.data(), before.view().rows(m, 1).data(), static_cast<size_t>(guard.n_bytes())),
      0);
}

TEST(CpuLinear, agrees_with_sums_in_double_at_every_level) {
  ThreadPool pool(2, false);
  for (const Isa isa : isas_here()) {
    for (const Case& c : cases) {
      for (int64_t m = 1; m <= 40; ++m) check_product(isa, c, m, 37, 19, pool);
      check_product(isa, c, 130, 21, 67, pool);
      check_product(isa, c, 1, 1, 1, pool);
      check_product(isa, c, 3, 16, 64, pool);
      check_product(isa, c, 2, 1100, 31, pool);
      check_product(isa, c, 13, 261, 130, pool);
    }
  }
}

TEST(CpuLinear, agrees_when_k_is_cut_into_blocks) {
  ThreadPool pool(1, false);
  for (const Isa isa : isas_here()) {
    for (const Case& c : cases) {
      check_product(isa, c, 26, 35, 1059, pool);
      check_product(isa, c, 1, 70, 1059, pool);
    }
  }
}

TEST(CpuLinear, takes_more_rows_than_one_block) {
  ThreadPool pool(2, false);
  for (const Isa isa : isas_here()) {
    check_product(isa, cases[0], 1030, 18, 20, pool);
    check_product(isa, cases[2], 1030, 18, 20, pool);
  }
}

TEST(CpuLinear, has_only_the_bias_where_there_are_no_columns) {
  ThreadPool pool(1, false);
  const PackedMatrix w(5, 0, DType::F32);
  const Tensor bias = random_tensor(DType::F32, 1, 5, 3);
  const Tensor y(DType::F32, {2, 5});
  linear(w, Tensor(DType::F32, {2, 0}), bias.as<float>(), y, pool, best_isa());
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(y.as<float>()[i], bias.as<float>()[i % 5]);
}

TEST(CpuLinear, rounds_bf16_results_to_nearest_even_and_keeps_nan) {
  ThreadPool pool(1, false);
  const float inputs[] = {1.0F + 0x1p-8F,
                          1.0F + 0x1.8p-7F,
                          -1.0F - 0x1p-8F - 0x1p-20F,
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          0x1p-130F,
                          3.0e38F,
                          std::numeric_limits<float>::max(),
                          0.0F};
  Tensor one(DType::F32, {1, 1});
  one.as<float>()[0] = 1.0F;
  for (const Isa isa : isas_here()) {
    for (const int64_t n : {1, 9, 17, 40}) {
      Tensor w(DType::F32, {n, 1});
      for (int64_t i = 0; i < n; ++i) w.as<float>()[i] = inputs[i % 9];
      const Tensor y(DType::BF16, {1, n});
      linear(pack(w), one, nullptr, y, pool, isa);
      for (int64_t i = 0; i < n; ++i) {
        const float value = to_f32(y.as<bf16>()[i]);
        const float wanted = to_f32(to_bf16(inputs[i % 9]));
        if (std::isnan(wanted)) {
          EXPECT_TRUE(std::isnan(value)) << isa_name(isa);
        } else {
          EXPECT_EQ(value, wanted) << isa_name(isa) << " " << inputs[i % 9];
        }
      }
    }
  }
}

void expect_same_bits(TensorView a, TensorView b) {
  ASSERT_EQ(a.n_bytes(), b.n_bytes());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.n_bytes())), 0);
}

// 530 rows are more than one block of x; k is long enough to be cut into blocks when there is more
// than one tile of rows.
TEST(CpuLinear, a_row_depends_neither_on_the_other_rows_nor_on_the_threads) {
  constexpr int64_t n = 70, k = 1060, m_max = 530;
  ThreadPool alone(1, false);
  ThreadPool three(3, false);
  for (const Isa isa : isas_here()) {
    for (const Case& c : cases) {
      SCOPED_TRACE(describe(isa, c, m_max, n, k));
      const Tensor x = random_tensor(c.x, m_max, k, 5);
      const PackedMatrix w = pack(random_tensor(c.w, n, k, 6));
      const Tensor all(c.y, {m_max, n});
      linear(w, x, nullptr, all, alone, isa);
      for (const int64_t m : {1, 2, 3, 5, 6, 7, 11, 12, 13, 24, 40, int{m_max}}) {
        const int64_t first = m == m_max ? 0 : 520 - m;
        const Tensor some(c.y, {m, n});
        linear(w, x.view().rows(first, m), nullptr, some, three, isa);
        expect_same_bits(some, all.view().rows(first, m));
      }
    }
  }
}

// Matrices of unequal size and kind share x, of which some need another packing.
TEST(CpuLinear, several_products_of_one_x_are_those_of_each) {
  constexpr int64_t k = 130;
  const DType kinds[] = {DType::BF16, DType::F32, DType::BF16, DType::F16};
  const int64_t sizes[] = {70, 1, 333, 0};
  for (const Isa isa : isas_here()) {
    for (const DType x_dtype : {DType::F32, DType::BF16}) {
      for (const int n_threads : {1, 2, 3}) {
        for (const int64_t m : {1, 14}) {
          SCOPED_TRACE(std::string(isa_name(isa)) + " threads " + std::to_string(n_threads));
          ThreadPool pool(n_threads, false);
          const Tensor x = random_tensor(x_dtype, m, k, 1);
          std::vector<PackedMatrix> matrices;
          std::vector<Tensor> biases, together;
          std::vector<LinearJob> jobs;
          for (size_t i = 0; i < 4; ++i) {
            matrices.push_back(pack(random_tensor(kinds[i], sizes[i], k, 2 + i)));
            biases.push_back(random_tensor(DType::F32, 1, sizes[i], 7 + i));
            together.emplace_back(i == 0 ? DType::BF16 : DType::F32, Shape{m, sizes[i]});
          }
          for (size_t i = 0; i < 4; ++i) {
            const float* bias = i == 1 ? nullptr : biases[i].as<float>();
            jobs.push_back({&matrices[i], bias, together[i]});
          }
          linear(jobs, x, pool, isa);
          for (const LinearJob& job : jobs) {
            const Tensor alone(job.y.dtype(), job.y.shape());
            linear(*job.w, x, job.bias, alone, pool, isa);
            expect_same_bits(job.y, alone);
          }
        }
      }
    }
  }
}

TEST(CpuLinear, refuses_what_does_not_fit) {
  ThreadPool pool(1, false);
  const PackedMatrix w(4, 8, DType::F32);
  const Tensor y(DType::F32, {1, 4});
  EXPECT_THROW(linear(w, Tensor(DType::F32, {1, 7}), nullptr, y, pool, Isa::portable),
               InternalError);
  EXPECT_THROW(linear(w, Tensor(DType::I8, {1, 8}), nullptr, y, pool, Isa::portable),
               InternalError);
  EXPECT_THROW(linear(w, Tensor(DType::F32, {2, 8}), nullptr, y, pool, Isa::portable),
               InternalError);
}

TEST(PackedMatrix, gives_back_the_rows_that_were_stored) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const int64_t k : {1, 2, 31, 32, 33, 130}) {
      constexpr int64_t n = 53;
      const Tensor rows = random_tensor(dtype, n, k, 7);
      PackedMatrix packed(n, k, dtype);
      for (int64_t first = 0, count = 1; first < n; first += count, count = count * 2 + 1) {
        count = std::min(count, n - first);
        packed.store_rows(first, rows.view().rows(first, count));
      }
      std::vector<float> row(static_cast<size_t>(k));
      for (int64_t r = 0; r < n; ++r) {
        packed.load_row(r, row.data());
        for (int64_t i = 0; i < k; ++i) {
          ASSERT_EQ(row[static_cast<size_t>(i)], element(rows, r * k + i))
              << dtype_name(dtype) << " row " << r << " column " << i;
        }
      }
    }
  }
}

TEST(PackedMatrix, has_the_documented_layout) {
  const Tensor rows = random_tensor(DType::BF16, 20, 6, 8);
  const PackedMatrix packed = pack(rows);
  const auto* second_panel = reinterpret_cast<const bf16*>(packed.panel(1));
  EXPECT_EQ(packed.n_panels(), 2);
  EXPECT_EQ(packed.panel_bytes(), 16 * 6 * 2);
  EXPECT_EQ(second_panel[(2 * 16 + 3) * 2 + 1].bits, rows.as<bf16>()[19 * 6 + 5].bits);
  EXPECT_EQ(second_panel[(2 * 16 + 4) * 2 + 1].bits, 0);  // row 20: padding
  const PackedMatrix wide = pack(random_tensor(DType::F32, 20, 6, 8));
  EXPECT_EQ(wide.panel_bytes(), 16 * 6 * 4);
  EXPECT_EQ(reinterpret_cast<const float*>(wide.panel(1))[5 * 16 + 3],
            random_tensor(DType::F32, 20, 6, 8).as<float>()[19 * 6 + 5]);
}

class IsaOverride : public testing::Test {
 protected:
  void TearDown() override { unsetenv("TESTBED_ISA"); }
};

TEST_F(IsaOverride, asks_for_a_lower_level) {
  unsetenv("TESTBED_ISA");
  EXPECT_EQ(choose_isa(), best_isa());
  for (const Isa isa : isas_here()) {
    setenv("TESTBED_ISA", std::string(isa_name(isa)).c_str(), 1);
    EXPECT_EQ(choose_isa(), isa);
  }
}

TEST_F(IsaOverride, of_an_unknown_name_is_a_config_error_that_lists_the_names) {
  setenv("TESTBED_ISA", "avx1024", 1);
  try {
    choose_isa();
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("TESTBED_ISA=avx1024"));
    EXPECT_THAT(error.what(),
                testing::HasSubstr("portable, avx2, avx512, avx512_vnni, avx512_bf16"));
  }
}

TEST_F(IsaOverride, above_the_processor_is_a_config_error) {
  EXPECT_THROW(choose_isa("avx512_bf16", Isa::avx512), ConfigError);
  EXPECT_THROW(choose_isa("avx2", Isa::portable), ConfigError);
  EXPECT_EQ(choose_isa("avx2", Isa::avx512), Isa::avx2);
  EXPECT_EQ(choose_isa("", Isa::avx2), Isa::avx2);
}

TEST(ThreadPool, runs_the_work_once_on_every_thread) {
  for (const bool may_spin : {false, true}) {
    for (const int n_threads : {1, 2, 3, 5}) {
      ThreadPool pool(n_threads, may_spin);
      EXPECT_EQ(pool.n_threads(), n_threads);
      std::vector<int> calls(
          static_cast<size_t>(n_threads));  // unsynchronised: run() must order it
      for (int i = 0; i < 200; ++i)
        pool.run([&](int thread) { ++calls[static_cast<size_t>(thread)]; });
      EXPECT_THAT(calls, testing::Each(200));
    }
  }
}

TEST(ThreadPool, wakes_threads_that_have_gone_to_sleep) {
  ThreadPool pool(2, true);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far longer than a thread spins
    std::atomic<int> calls = 0;
    pool.run([&](int thread) {
      if (thread == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ++calls;
    });
    EXPECT_EQ(calls, 2);
  }
}

TEST(ThreadPool, parallel_for_covers_each_index_once_at_multiples_of_the_granule) {
  ThreadPool pool(3, false);
  for (const int64_t granule : {1, 4, 16}) {
    for (const int64_t n : {0, 1, 3, 4, 5, 16, 47, 48, 100}) {
      std::vector<int> seen(static_cast<size_t>(n));
      pool.parallel_for(n, granule, [&](int64_t begin, int64_t end) {
        EXPECT_EQ(begin % granule, 0);
        EXPECT_TRUE(end == n || end % granule == 0);
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      EXPECT_THAT(seen, testing::Each(1));
    }
  }
}

TEST(ThreadPool, rethrows_an_exception_of_any_thread_and_goes_on) {
  for (const int n_threads : {1, 3}) {
    ThreadPool pool(n_threads, false);
    for (int thrower = 0; thrower < n_threads; ++thrower) {
      EXPECT_THROW(pool.run([&](int thread) {
        if (thread == thrower) throw std::runtime_error("from a thread");
      }),
                   std::runtime_error);
      std::atomic<int> calls = 0;
      pool.run([&](int) { ++calls; });
      EXPECT_EQ(calls, n_threads);
    }
  }
}

TEST(ThreadPool, refuses_a_run_inside_a_run) {
  ThreadPool pool(2, false);
  EXPECT_THROW(pool.run([&](int) { pool.run([](int) {}); }), InternalError);
}

}  // namespace
}  // namespace testbed::cpu
