// The ops between the matrix products, at every level of this processor, against double arithmetic.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "kernels/cpu/elementwise.hpp"
#include "tests/unit/elementwise_support.hpp"

namespace testbed::cpu {
namespace {

// Of the sum of squares, every term is positive and passes a chain of at most n / 4 + 12 roundings
// (four sums side by side, then across the lanes); the root halves that. Five more: the mean, eps,
// root, quotient and two products, of which the first two are halved too.
double rms_bound(int64_t d) { return roundings(static_cast<double>(d) / 8 + 12); }

void check_norm(TensorView x, TensorView weight, float eps, TensorView out) {
  const int64_t d = x.shape()[-1];
  for (int64_t row = 0; row < x.n_rows(); ++row) {
    double sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += at(x, row * d + i) * at(x, row * d + i);
    const double factor = 1 / std::sqrt(sum / static_cast<double>(d) + eps);
    for (int64_t i = 0; i < d; ++i) {
      const double expected = at(x, row * d + i) * factor * at(weight, i);
      expect_near(out, row * d + i, expected, std::abs(expected) * rms_bound(d));
    }
  }
}

TEST(CpuElementwise, rms_norm) {
  everywhere([](Isa isa, ThreadPool& pool) {
    for (const DType dtype : dtypes) {
      for (const int64_t d : widths) {
        const Tensor x = random(dtype, {5, d}, 1, 3.0);
        const Tensor weight = random(DType::F32, {d}, 2);
        Tensor out(dtype, {5, d});
        rms_norm(x, weight, 1e-5F, out, pool, isa);
        check_norm(x, weight, 1e-5F, out);
        const Tensor in_place = copy(x);
        rms_norm(in_place, weight, 1e-5F, in_place, pool, isa);
        EXPECT_TRUE(same_bits(in_place, out));
      }
    }
  });
}

TEST(CpuElementwise, add_rms_norm_is_add_then_norm_of_what_was_stored) {
  everywhere([](Isa isa, ThreadPool& pool) {
    for (const DType dtype : dtypes) {
      for (const int64_t d : widths) {
        const Tensor residual = random(dtype, {5, d}, 1, 3.0);
        const Tensor before = copy(residual);
        const Tensor x = random(dtype, {5, d}, 3);
        const Tensor weight = random(DType::F32, {d}, 2);
        Tensor out(dtype, {5, d});
        add_rms_norm(residual, x, weight, 1e-6F, out, pool, isa);
        for (int64_t i = 0; i < x.n_elements(); ++i) {
          const auto a = static_cast<float>(at(before, i));
          const auto b = static_cast<float>(at(x, i));
          Tensor sum(dtype, {1});
          set(sum, 0, a + b);
          EXPECT_EQ(at(residual, i), at(sum, 0));
        }
        check_norm(residual, weight, 1e-6F, out);
        const Tensor only_added = copy(before);
        add(only_added, x, pool, isa);
        EXPECT_TRUE(same_bits(only_added, residual));
      }
    }
  });
}

TEST(CpuElementwise, D22_norm_of_values_whose_squares_overflow_is_nan_not_zero) {
  everywhere([](Isa isa, ThreadPool& pool) {
    for (const DType dtype : dtypes) {
      const Tensor x = random(dtype, {1, 64}, 1, 1e25);
      const Tensor weight = random(DType::F32, {64}, 2);
      Tensor out(dtype, {1, 64});
      rms_norm(x, weight, 1e-5F, out, pool, isa);
      for (int64_t i = 0; i < 64; ++i) EXPECT_TRUE(std::isnan(at(out, i)));
    }
  });
}

std::vector<double> frequencies_of(int64_t head_dim) {
  std::vector<double> inv_freq(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = std::pow(1e4, -2 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  return inv_freq;
}

// cos, sin, products and sum are rounded once each; each output is a sum of two products.
void check_rope(bool interleaved, Isa isa, ThreadPool& pool) {
  const std::vector<int64_t> positions = {0, 1, 2, 4095, 131071};
  const auto n_rows = static_cast<int64_t>(positions.size());
  constexpr int64_t n_heads = 3;
  for (const DType dtype : dtypes) {
    for (const int64_t head_dim : {2, 16, 64, 80, 128, 256}) {
      const int64_t half = head_dim / 2;
      const std::vector<double> inv_freq = frequencies_of(head_dim);
      const Tensor before = random(dtype, {n_rows, n_heads, head_dim}, 1);
      const Tensor x = copy(before);
      rope(x, positions, {inv_freq, 1.25, interleaved}, pool, isa);
      const int64_t partner = interleaved ? 1 : half;
      for (int64_t i = 0; i < x.n_elements(); ++i) {
        const int64_t d = i % head_dim;
        const int64_t row = i / (n_heads * head_dim);
        const int64_t pair = interleaved ? d / 2 : d % half;
        const bool is_first = interleaved ? d % 2 == 0 : d < half;
        const double angle = static_cast<double>(positions[static_cast<size_t>(row)]) *
                             inv_freq[static_cast<size_t>(pair)];
        const double own = at(before, i) * 1.25 * std::cos(angle);
        const double other =
            at(before, is_first ? i + partner : i - partner) * 1.25 * std::sin(angle);
        const double expected = is_first ? own - other : own + other;
        expect_near(x, i, expected, (std::abs(own) + std::abs(other)) * roundings(3));
      }
    }
  }
}

TEST(CpuElementwise, rope_rotates_halves) {
  everywhere([](Isa isa, ThreadPool& pool) { check_rope(false, isa, pool); });
}

TEST(CpuElementwise, rope_rotates_interleaved_pairs) {
  everywhere([](Isa isa, ThreadPool& pool) { check_rope(true, isa, pool); });
}

TEST(CpuElementwise, scale_rounds_once) {
  everywhere([](Isa isa, ThreadPool& pool) {
    for (const DType dtype : dtypes) {
      for (const int64_t n : widths) {
        const Tensor before = random(dtype, {3, n}, 1);
        const Tensor x = copy(before);
        scale(x, 1.7F, pool, isa);
        for (int64_t i = 0; i < x.n_elements(); ++i) {
          Tensor expected(dtype, {1});
          set(expected, 0, static_cast<float>(at(before, i)) * 1.7F);
          EXPECT_EQ(at(x, i), at(expected, 0));
        }
      }
    }
  });
}

TEST(CpuElementwise, all_finite_finds_any_element) {
  everywhere([](Isa isa, ThreadPool& pool) {
    for (const DType dtype : dtypes) {
      for (const int64_t n : {1, 15, 16, 17, 33, 50000}) {
        const Tensor x = random(dtype, {2, n}, 1);
        EXPECT_TRUE(all_finite(x, pool, isa));
        for (const int64_t where : {int64_t{0}, n, 2 * n - 1}) {
          for (const float bad : {nan, infinity, -infinity}) {
            const double before = at(x, where);
            set(x, where, bad);
            EXPECT_FALSE(all_finite(x, pool, isa)) << where << " of " << n;
            set(x, where, before);
          }
        }
      }
    }
  });
}

TEST(CpuElementwise, convert_rounds_as_to_bf16_and_widens_exactly) {
  everywhere([](Isa isa, ThreadPool& pool) {
    // Every bf16, and values around every midpoint of two.
    const int64_t n = int64_t{3} << 16;
    Tensor wide(DType::F32, {n + 5});
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t low[] = {0, 0x7fff, 0x8000};
      const auto high = static_cast<uint32_t>(i / 3) << 16;
      wide.as<float>()[i] = std::bit_cast<float>(high | low[i % 3]);
    }
    Tensor narrow(DType::BF16, {n + 5});
    convert(wide, narrow, pool, isa);
    Tensor back(DType::F32, {n + 5});
    convert(narrow, back, pool, isa);
    int64_t n_wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      const bf16 expected = to_bf16(wide.as<float>()[i]);
      if (narrow.as<bf16>()[i].bits != expected.bits) ++n_wrong;
      if (std::bit_cast<uint32_t>(back.as<float>()[i]) >> 16 != expected.bits) ++n_wrong;
    }
    EXPECT_EQ(n_wrong, 0);
  });
}

TEST(CpuElementwise, row_max_takes_the_lowest_index_of_ties) {
  everywhere([](Isa isa, ThreadPool& pool) {
    for (const int64_t n : {1, 2, 15, 16, 17, 100, 49152}) {
      for (const int64_t where : {int64_t{0}, n / 2, n - 1}) {
        const Tensor x = random(DType::F32, {3, n}, 1);
        for (int64_t row = 0; row < 3; ++row) {
          x.as<float>()[row * n + where] = 100.0F;
          x.as<float>()[row * n + n - 1] = 100.0F;
        }
        std::vector<RowMax> result(3);
        row_max(x, result, pool, isa);
        for (const RowMax& r : result) {
          EXPECT_EQ(r.value, 100.0F);
          EXPECT_EQ(r.index, where);
          EXPECT_TRUE(r.finite);
        }
      }
    }
  });
}

// One row, which the threads share.
TEST(CpuElementwise, row_max_of_a_row_that_is_cut) {
  ThreadPool pool(3, false);
  const int64_t n = 3 * 20000 + 5;
  for (const Isa isa : isas_here()) {
    for (const int64_t where : {int64_t{0}, int64_t{20001}, int64_t{20002}, n - 1}) {
      const Tensor x = random(DType::F32, {1, n}, 1);
      x.as<float>()[where] = 100.0F;
      x.as<float>()[n - 1] = 100.0F;
      std::vector<RowMax> result(1);
      row_max(x, result, pool, isa);
      EXPECT_EQ(result[0].value, 100.0F);
      EXPECT_EQ(result[0].index, where);
      EXPECT_TRUE(result[0].finite);
      x.as<float>()[n / 2] = nan;
      row_max(x, result, pool, isa);
      EXPECT_EQ(result[0].index, where);
      EXPECT_FALSE(result[0].finite);
    }
  }
}

// Two sets of frequencies in turn, as layers of two kinds have, then other positions.
TEST(CpuElementwise, kept_rotations_are_those_asked_for) {
  ThreadPool pool(2, false);
  const std::vector<double> full = {1.0, 0.1, 0.01};
  const std::vector<double> window = {1.0, 0.5, 0.25};
  RotationTables tables;
  for (const std::vector<int64_t>& positions :
       {std::vector<int64_t>{0, 7, 3}, {0, 7, 4}, {9}, {0, 7, 3}}) {
    for (const double multiplier : {1.0, 1.25}) {
      for (int layer = 0; layer < 3; ++layer) {
        for (const auto& inv_freq : {full, window}) {
          const auto m = static_cast<int64_t>(positions.size());
          const Tensor x = random(DType::F32, {m, 2, 6}, 1);
          const Tensor want = random(DType::F32, {m, 2, 6}, 1);
          rope(x, positions, {inv_freq, multiplier, false}, tables, pool, best_isa());
          rope(want, positions, {inv_freq, multiplier, false}, pool, best_isa());
          EXPECT_TRUE(same_bits(x, want));
        }
      }
    }
  }
}

TEST(CpuElementwise, D22_row_max_reports_non_finite_rows) {
  everywhere([](Isa isa, ThreadPool& pool) {
    for (const int64_t n : {1, 16, 33}) {
      for (const float bad : {nan, infinity, -infinity}) {
        for (const int64_t where : {int64_t{0}, n / 2, n - 1}) {
          const Tensor x = random(DType::F32, {2, n}, 1);
          x.as<float>()[n + where] = bad;
          std::vector<RowMax> result(2);
          row_max(x, result, pool, isa);
          EXPECT_TRUE(result[0].finite);
          EXPECT_FALSE(result[1].finite);
          EXPECT_TRUE(result[1].index >= 0 && result[1].index < n);
        }
      }
    }
  });
}

TEST(CpuElementwise, result_does_not_depend_on_threads_or_other_rows) {
  ThreadPool one(1, false);
  ThreadPool three(3, false);
  for (const DType dtype : dtypes) {
    const int64_t d = 1000;
    const Tensor x = random(dtype, {70, d}, 1);
    const Tensor weight = random(DType::F32, {d}, 2);
    Tensor a(dtype, {70, d});
    Tensor b(dtype, {70, d});
    rms_norm(x, weight, 1e-5F, a, one, best_isa());
    rms_norm(x, weight, 1e-5F, b, three, best_isa());
    EXPECT_TRUE(same_bits(a, b));
    rms_norm(x.view().rows(41, 1), weight, 1e-5F, b.view().rows(0, 1), one, best_isa());
    EXPECT_TRUE(same_bits(a.view().rows(41, 1), b.view().rows(0, 1)));
  }
}

TEST(CpuElementwise, no_rows_is_no_work) {
  everywhere([](Isa isa, ThreadPool& pool) {
    const Tensor weight = random(DType::F32, {16}, 2);
    const Tensor none(DType::F32, {0, 16});
    rms_norm(none, weight, 1e-5F, none, pool, isa);
    gated_activation(Activation::silu, Tensor(DType::F32, {0, 32}), none, pool, isa);
    gated_activation(Activation::silu, none, none, none, pool, isa);
    scale(none, 2.0F, pool, isa);
    softcap(none, 2.0F, pool, isa);
    EXPECT_TRUE(all_finite(none, pool, isa));
    const std::vector<double> inv_freq = {1.0, 0.1};
    rope(Tensor(DType::F32, {0, 2, 4}), {}, {inv_freq, 1.0, true}, pool, isa);
    row_max(none, {}, pool, isa);
  });
}

}  // namespace
}  // namespace testbed::cpu
