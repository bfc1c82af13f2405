// Products with quantised weights, at every level of this processor and in every format, against
// kernels/quantise's dequantise().
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/float16.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/packed_matrix.hpp"
#include "kernels/cpu/thread_pool.hpp"
#include "kernels/quantise.hpp"
#include "tests/unit/isas.hpp"
#include "tests/unit/tolerance.hpp"

namespace testbed::cpu {
namespace {

uint64_t mix(uint64_t index) {
  uint64_t z = index * 0x9e3779b97f4a7c15U + 0x1234567U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}
// In [-1, 1).
float noise(uint64_t index) {
  return static_cast<float>(static_cast<double>(mix(index) >> 11) * 0x1p-52 - 1.0);
}

int8_t random_code(WeightCoding coding, uint64_t index) {
  const auto bits = static_cast<uint8_t>(mix(index) >> 20);
  if (coding == WeightCoding::int4) return static_cast<int8_t>(bits & 15);
  const bool is_nan = coding == WeightCoding::fp8 && (bits & 0x7f) == 0x7f;
  return std::bit_cast<int8_t>(is_nan ? uint8_t{0x38} : bits);
}

// All codes occur: -128 and 127, 0 and 15, subnormals. A row of zeros, and scales of both signs.
QuantisedTensor random_weights(const WeightFormat& format, int64_t n, int64_t k, uint64_t seed) {
  QuantisedTensor w(format, n, k);
  seed <<= 32;
  for (int64_t i = 0; i < n * k; ++i) {
    const bool zero = i / k == 5 && format.offset == WeightOffset::none;
    w.codes.as<int8_t>()[i] =
        zero ? int8_t{0} : random_code(format.coding, seed + static_cast<uint64_t>(i));
  }
  for (int64_t i = 0; i < w.scales.n_elements(); ++i) {
    const float scale = noise(seed + 777 + static_cast<uint64_t>(i)) * 0.01F;
    if (format.scale_dtype == DType::F32) {
      w.scales.as<float>()[i] = scale;
    } else {
      w.scales.as<f16>()[i] = to_f16(scale);
    }
  }
  for (int64_t i = 0; i < w.offsets.n_elements() && !w.offsets.empty(); ++i) {
    const uint64_t at = seed + 999 + static_cast<uint64_t>(i);
    if (format.offset == WeightOffset::zero_point) {
      w.offsets.as<int8_t>()[i] = static_cast<int8_t>(mix(at) & 15);
    } else {
      w.offsets.as<f16>()[i] = to_f16(noise(at) * 0.1F);
    }
  }
  return w;
}

Tensor dequantised(const QuantisedRows& rows) {
  Tensor out(DType::F32, {rows.n_rows(), rows.n_cols()});
  dequantise(rows, out);
  return out;
}

PackedMatrix pack(const QuantisedRows& rows) {
  PackedMatrix w(rows.n_rows(), rows.n_cols(), rows.format);
  w.store_rows(0, rows);
  return w;
}

// Rows of noise, of zeros, with one huge element, of tiny numbers, and with zeros in between.
float x_value(int64_t row, int64_t column, int64_t k) {
  const float value = noise(static_cast<uint64_t>((row << 20) + column + 5));
  switch (row % 5) {
    case 1:
      return 0.0F;
    case 2:
      return column == k / 2 ? 3.0e4F : value;
    case 3:
      return value * 0x1p-125F;
    case 4:
      return column % 3 == 0 ? 0.0F : value;
    default:
      return value;
  }
}

Tensor random_x(DType dtype, int64_t m, int64_t k) {
  Tensor x(dtype, {m, k});
  for (int64_t i = 0; i < m * k; ++i) {
    const float value = x_value(i / k, i % k, k);
    if (dtype == DType::F32) {
      x.as<float>()[i] = value;
    } else {
      x.as<bf16>()[i] = to_bf16(value);
    }
  }
  return x;
}

float element(TensorView t, int64_t i) {
  return t.dtype() == DType::F32 ? t.as<float>()[i] : to_f32(t.as<bf16>()[i]);
}

// What linear.hpp says is multiplied: x itself, or its codes times their scales; and how far that
// lies from x at most.
struct Activations {
  std::vector<double> x, multiplied, half_scale;
  Activations(TensorView rows, bool quantised) {
    const int64_t k = rows.row_elements();
    const auto n = static_cast<size_t>(rows.n_elements());
    x.resize(n);
    for (size_t i = 0; i < n; ++i) x[i] = element(rows, static_cast<int64_t>(i));
    multiplied = x;
    half_scale.resize(n);
    for (int64_t begin = 0; quantised && begin < rows.n_elements();) {
      const int64_t end = begin + std::min<int64_t>(32, k - begin % k);
      float largest = 0.0F;
      for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(element(rows, i)));
      const float scale = largest / 127.0F;
      for (int64_t i = begin; i < end && largest > 0.0F; ++i) {
        const float code = std::clamp(std::nearbyint(element(rows, i) / scale), -127.0F, 127.0F);
        multiplied[static_cast<size_t>(i)] = double{code} * double{scale};
        half_scale[static_cast<size_t>(i)] = 0.5 * double{scale};
      }
      begin = end;
    }
  }
};

// The products in double, and their bounds.
//
// A sum of k products, each of them code * scale (+ minimum) times x, is rounded at most once for
// each product and four times for each block of 32 (integers to f32, two scales, the minimum), by
// 2^-24 of what was summed, which the sum of magnitudes bounds; (code - zero) is exact. vdpbf16ps
// takes what is below 2^-126 for zero, in x and in what it sums.
struct Reference {
  std::vector<double> multiplied, multiplied_bound;  // of the product with what is multiplied
  std::vector<double> exact, exact_bound;            // of the product with x

  Reference(const QuantisedRows& w, const Activations& a, int64_t m) {
    const int64_t n = w.n_rows();
    const int64_t k = w.n_cols();
    const Tensor weights = dequantised(w);
    const std::vector<double> parts = magnitudes(w, weights);
    const double roundings = static_cast<double>(k + 4 * (k / 32 + 1)) * 0x1p-24;
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0.0, true_sum = 0.0, magnitude = 0.0, moved = 0.0, flushed = 0.0;
        for (int64_t j = 0; j < k; ++j) {
          const auto at_x = static_cast<size_t>(r * k + j);
          const double weight = weights.as<float>()[i * k + j];
          sum += weight * a.multiplied[at_x];
          true_sum += weight * a.x[at_x];
          magnitude += parts[static_cast<size_t>(i * k + j)] * std::abs(a.multiplied[at_x]);
          moved += std::abs(weight) * a.half_scale[at_x];
          flushed += (std::abs(weight) + 1.0) * 0x1p-126;
        }
        const double rounding = roundings * magnitude + flushed;
        multiplied.push_back(sum);
        multiplied_bound.push_back(rounding);
        exact.push_back(true_sum);
        // x / scale is itself rounded before it is rounded to a code.
        exact_bound.push_back(moved * (1.0 + 0x1p-16) + rounding);
      }
    }
  }

 private:
  // |code * scale| + |minimum| of each weight.
  static std::vector<double> magnitudes(const QuantisedRows& w, TensorView weights) {
    std::vector<double> out(static_cast<size_t>(weights.n_elements()));
    const int64_t k = w.n_cols();
    for (int64_t i = 0; i < weights.n_elements(); ++i) {
      double value = std::abs(weights.as<float>()[i]);
      if (w.format.offset == WeightOffset::minimum) {
        const int64_t group = i / k * w.format.n_groups(k) + i % k / w.format.group_cols;
        value += 2.0 * std::abs(to_f32(w.offsets.as<f16>()[group]));
      }
      out[static_cast<size_t>(i)] = value;
    }
    return out;
  }
};

void expect_within(TensorView y,
                   const std::vector<double>& wanted,
                   const std::vector<double>& bounds) {
  int64_t n_bad = 0;
  for (int64_t i = 0; i < y.n_elements(); ++i) {
    const auto at = static_cast<size_t>(i);
    const double bound =
        bounds[at] + tolerance::store(y.dtype(), std::abs(wanted[at]) + bounds[at]);
    const double got = element(y, i);
    if (!(std::abs(got - wanted[at]) <= bound) && ++n_bad <= 3) {
      ADD_FAILURE() << "element " << i << ": " << got << ", not " << wanted[at] << " +- " << bound;
    }
  }
  EXPECT_EQ(n_bad, 0);
}

void expect_same_bits(TensorView a, TensorView b) {
  ASSERT_EQ(a.n_bytes(), b.n_bytes());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.n_bytes())), 0);
}

constexpr int64_t row_counts[] = {1, 2, 5, 17, 70};
constexpr int64_t max_rows = 70;

std::string describe(const weight_formats::Named& named, Isa isa, int64_t n, int64_t k) {
  return std::string(named.name) + " " + std::string(isa_name(isa)) + " n " + std::to_string(n) +
         " k " + std::to_string(k);
}

class QuantisedLinear : public testing::TestWithParam<weight_formats::Named> {
 protected:
  const WeightFormat& format() const { return GetParam().format; }
  bool quantises_x() const { return format().coding != WeightCoding::fp8; }
};

TEST_P(QuantisedLinear, bf16_x_is_within_the_bounds_that_are_stated) {
  ThreadPool pool(2, false);
  for (const int64_t n : {1, 15, 17, 40}) {
    for (const int64_t k : {1, 31, 33, 96, 384, 576}) {
      const QuantisedTensor w = random_weights(format(), n, k, 1);
      const PackedMatrix packed = pack(w);
      const Tensor x = random_x(DType::BF16, max_rows, k);
      const Reference reference(w, Activations(x, quantises_x()), max_rows);
      for (const Isa isa : isas_here()) {
        for (const int64_t m : row_counts) {
          SCOPED_TRACE(describe(GetParam(), isa, n, k) + " m " + std::to_string(m));
          const Tensor y(m == 5 ? DType::BF16 : DType::F32, {m, n});
          linear(packed, x.view().rows(0, m), nullptr, y, pool, isa);
          expect_within(y, reference.multiplied, reference.multiplied_bound);
          expect_within(y, reference.exact, reference.exact_bound);
        }
      }
    }
  }
}

TEST_P(QuantisedLinear, f32_x_gives_what_the_plain_matrix_gives_bit_for_bit) {
  ThreadPool pool(2, false);
  for (const int64_t n : {1, 17, 90}) {
    for (const int64_t k : {1, 33, 96, 576, 1100}) {
      const QuantisedTensor w = random_weights(format(), n, k, 2);
      const PackedMatrix packed = pack(w);
      PackedMatrix plain(n, k, DType::F32);
      plain.store_rows(0, dequantised(w));
      for (const Isa isa : isas_here()) {
        for (const int64_t m : {1, 2, 5, 17}) {
          SCOPED_TRACE(describe(GetParam(), isa, n, k) + " m " + std::to_string(m));
          const Tensor x = random_x(DType::F32, m, k);
          const Tensor y(DType::F32, {m, n}), wanted(DType::F32, {m, n});
          linear(packed, x, nullptr, y, pool, isa);
          linear(plain, x, nullptr, wanted, pool, isa);
          expect_same_bits(y, wanted);
        }
      }
    }
  }
}

// Long rows are cut into blocks of k where there is more than one tile of rows; 530 rows are more
// than one block of x.
TEST_P(QuantisedLinear, a_row_depends_neither_on_the_other_rows_nor_on_the_threads) {
  constexpr int64_t n = 50, k = 4210, m_max = 530;
  ThreadPool alone(1, false), three(3, false);
  const QuantisedTensor w = random_weights(format(), n, k, 3);
  const PackedMatrix packed = pack(w);
  const Tensor x = random_x(DType::BF16, m_max, k);
  for (const Isa isa : isas_here()) {
    if (isa == Isa::portable) continue;  // slow, and without tiles of its own shape
    SCOPED_TRACE(describe(GetParam(), isa, n, k));
    const Tensor all(DType::F32, {m_max, n});
    linear(packed, x, nullptr, all, alone, isa);
    for (const int64_t m : {1, 2, 3, 4, 7, 12, 13, 30}) {
      const int64_t first = 525 - m;
      const Tensor some(DType::F32, {m, n});
      linear(packed, x.view().rows(first, m), nullptr, some, three, isa);
      expect_same_bits(some, all.view().rows(first, m));
    }
  }
}

TEST_P(QuantisedLinear, all_levels_sum_the_same_integers) {
  // Scales are powers of two, x has whole numbers up to 127 in each block: all sums are exact.
  constexpr int64_t n = 37, k = 300, m = 5;
  ThreadPool pool(2, false);
  QuantisedTensor w = random_weights(format(), n, k, 4);
  for (int64_t i = 0; i < w.scales.n_elements(); ++i) {
    if (format().scale_dtype == DType::F32) {
      w.scales.as<float>()[i] = 0.5F;
    } else {
      w.scales.as<f16>()[i] = to_f16(0.5F);
    }
  }
  for (int64_t i = 0; format().offset == WeightOffset::minimum && i < w.offsets.n_elements(); ++i) {
    w.offsets.as<f16>()[i] = to_f16(-0.25F);
  }
  if (format().coding == WeightCoding::fp8) {  // numbers whose sums fit 24 bits
    for (int64_t i = 0; i < n * k; ++i) {
      w.codes.as<int8_t>()[i] = std::bit_cast<int8_t>(static_cast<uint8_t>(0x38 + i % 24));
    }
  }
  Tensor x(DType::BF16, {m, k});
  for (int64_t i = 0; i < m * k; ++i) {
    const auto value =
        static_cast<float>(static_cast<int64_t>(mix(static_cast<uint64_t>(i)) % 255) - 127);
    x.as<bf16>()[i] = to_bf16(i % k % 32 == 0 ? -127.0F : value);
  }
  const Tensor weights = dequantised(w);
  const PackedMatrix packed = pack(w);
  for (const Isa isa : isas_here()) {
    SCOPED_TRACE(describe(GetParam(), isa, n, k));
    const Tensor y(DType::F32, {m, n});
    linear(packed, x, nullptr, y, pool, isa);
    for (int64_t i = 0; i < m * n; ++i) {
      double sum = 0.0;
      for (int64_t j = 0; j < k; ++j) {
        sum += double{weights.as<float>()[i % n * k + j]} *
               double{to_f32(x.as<bf16>()[i / n * k + j])};
      }
      ASSERT_EQ(y.as<float>()[i], sum) << "row " << i / n << " column " << i % n;
    }
  }
}

TEST_P(QuantisedLinear, extreme_codes_do_not_saturate) {
  constexpr int64_t n = 20, k = 256, m = 3;
  ThreadPool pool(1, false);
  const bool is_int4 = format().coding == WeightCoding::int4;
  const bool is_int8 = format().coding == WeightCoding::int8;
  for (const int low : {0, 1}) {
    QuantisedTensor w = random_weights(format(), n, k, 5);
    const int code = is_int4   ? (low == 1 ? 0 : 15)
                     : is_int8 ? (low == 1 ? -128 : 127)
                               : (low == 1 ? -2 : 0x7e);
    std::fill_n(w.codes.as<int8_t>(), n * k, static_cast<int8_t>(code));
    Tensor x(DType::BF16, {m, k});
    for (int64_t i = 0; i < m * k; ++i) {
      x.as<bf16>()[i] = to_bf16(i / k == 0 ? 1.0F : i / k == 1 ? -1.0F : i % 2 == 0 ? 1.0F : -1.0F);
    }
    const Reference reference(w, Activations(x, quantises_x()), m);
    const PackedMatrix packed = pack(w);
    for (const Isa isa : isas_here()) {
      SCOPED_TRACE(describe(GetParam(), isa, n, k) + " code " + std::to_string(code));
      const Tensor y(DType::F32, {m, n});
      linear(packed, x, nullptr, y, pool, isa);
      expect_within(y, reference.multiplied, reference.multiplied_bound);
    }
  }
}

TEST_P(QuantisedLinear, what_is_not_finite_in_x_makes_its_row_nan_alone) {
  constexpr int64_t n = 20, k = 70;
  ThreadPool pool(1, false);
  const PackedMatrix packed = pack(random_weights(format(), n, k, 6));
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const Tensor x = random_x(DType::BF16, 3, k);
    x.as<bf16>()[k + 66] = to_bf16(bad);
    for (const Isa isa : isas_here()) {
      const Tensor y(DType::F32, {3, n});
      linear(packed, x, nullptr, y, pool, isa);
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_FALSE(std::isfinite(y.as<float>()[n + i])) << describe(GetParam(), isa, n, k);
        EXPECT_TRUE(std::isfinite(y.as<float>()[i]) && std::isfinite(y.as<float>()[2 * n + i]));
      }
    }
  }
}

TEST_P(QuantisedLinear, packed_rows_are_given_back_as_dequantise_does_it) {
  constexpr int64_t n = 53;
  for (const int64_t k : {1, 7, 31, 32, 33, 130, 576}) {
    const QuantisedTensor w = random_weights(format(), n, k, 7);
    const QuantisedRows rows = w;
    PackedMatrix packed(n, k, format());
    for (int64_t first = 0, count = 1; first < n; first += count, count = count * 2 + 1) {
      count = std::min(count, n - first);
      packed.store_rows(first, rows.rows(first, count));
    }
    const Tensor wanted = dequantised(rows);
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t r = 0; r < n; ++r) {
      packed.load_row(r, row.data());
      ASSERT_EQ(std::memcmp(row.data(), wanted.as<float>() + r * k, sizeof(float) * row.size()), 0)
          << GetParam().name << " row " << r << " of " << k;
    }
  }
}

TEST_P(QuantisedLinear, several_products_share_the_codes_of_x) {
  constexpr int64_t k = 576;
  const PackedMatrix first = pack(random_weights(format(), 40, k, 8));
  const PackedMatrix second = pack(random_weights(weight_formats::int8_g32, 100, k, 9));
  for (const Isa isa : isas_here()) {
    for (const int64_t m : {1, 14}) {
      ThreadPool pool(2, false);
      const Tensor x = random_x(DType::BF16, m, k);
      const Tensor y[] = {Tensor(DType::F32, {m, 40}), Tensor(DType::F32, {m, 100})};
      const LinearJob jobs[] = {{&first, nullptr, y[0]}, {&second, nullptr, y[1]}};
      linear(jobs, x, pool, isa);
      for (const LinearJob& job : jobs) {
        const Tensor alone(DType::F32, job.y.shape());
        linear(*job.w, x, nullptr, alone, pool, isa);
        expect_same_bits(job.y, alone);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         QuantisedLinear,
                         testing::ValuesIn(weight_formats::quantised),
                         [](const auto& parameter) {
                           std::string name(parameter.param.name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Fp8Linear, knows_every_code_at_every_level) {
  ThreadPool pool(1, false);
  constexpr int64_t n = 256;
  QuantisedTensor w(weight_formats::fp8_block128, n, 6);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < 6; ++k) w.codes.as<int8_t>()[i * 6 + k] = static_cast<int8_t>(i);
    w.scales.as<float>()[i] = 1.0F;
  }
  const PackedMatrix packed = pack(w);
  for (const Isa isa : isas_here()) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      for (int64_t k = 0; k < 6; ++k) {  // each column of a vector, and of the padded one
        const Tensor x(dtype, {1, 6});
        if (dtype == DType::F32) {
          x.as<float>()[k] = 1.0F;
        } else {
          x.as<bf16>()[k] = to_bf16(1.0F);
        }
        const Tensor y(DType::F32, {1, n});
        linear(packed, x, nullptr, y, pool, isa);
        for (int64_t i = 0; i < n; ++i) {
          const float wanted = from_e4m3(static_cast<uint8_t>(i));
          if (std::isnan(wanted)) {
            EXPECT_TRUE(std::isnan(y.as<float>()[i])) << isa_name(isa) << " code " << i;
          } else {
            EXPECT_EQ(y.as<float>()[i], wanted) << isa_name(isa) << " code " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace testbed::cpu
