#include "kernels/cpu/rows.hpp"

#include <cstring>
#include <vector>

#include "kernels/cpu/elementwise_types.hpp"

namespace testbed::cpu {

void gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out, ThreadPool& pool) {
  CHECK(x.dtype() == out.dtype() && out.n_rows() == static_cast<int64_t>(rows.size()));
  const int64_t row_bytes = dtype_bytes(out.dtype(), out.row_elements());
  const auto* from = static_cast<const std::byte*>(x.data());
  auto* to = static_cast<std::byte*>(out.data());
  pool.parallel_for(
      out.n_rows(), granule_rows(out.row_elements()), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = rows[static_cast<size_t>(i)];
          CHECK(row >= -1 && row < x.n_rows());
          if (row < 0) {
            std::memset(to + i * row_bytes, 0, static_cast<size_t>(row_bytes));
          } else {
            std::memcpy(to + i * row_bytes, from + row * row_bytes, static_cast<size_t>(row_bytes));
          }
        }
      });
}

void copy_columns(TensorView x,
                  int64_t x_column,
                  int64_t n,
                  TensorView out,
                  int64_t out_column,
                  ThreadPool& pool) {
  if (out.n_elements() == 0 || n == 0) return;
  CHECK(x.dtype() == out.dtype() && x.n_elements() > 0);
  CHECK(x_column + n <= x.shape()[-1] && out_column + n <= out.shape()[-1]);
  const int64_t x_pitch = dtype_bytes(x.dtype(), x.shape()[-1]);
  const int64_t out_pitch = dtype_bytes(x.dtype(), out.shape()[-1]);
  const int64_t n_rows = out.n_elements() / out.shape()[-1];
  const int64_t repeat = n_rows / (x.n_elements() / x.shape()[-1]);
  const auto* from = static_cast<const std::byte*>(x.data()) + dtype_bytes(x.dtype(), x_column);
  auto* to = static_cast<std::byte*>(out.data()) + dtype_bytes(x.dtype(), out_column);
  const auto n_bytes = static_cast<size_t>(dtype_bytes(x.dtype(), n));
  pool.parallel_for(n_rows, granule_rows(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(to + i * out_pitch, from + i / repeat * x_pitch, n_bytes);
    }
  });
}

void combine_rows(
    TensorView x, const WeightedRows& sums, TensorView out, ThreadPool& pool, Isa isa) {
  CHECK(x.dtype() == out.dtype() && sums.rows.size() == sums.weights.size());
  CHECK(static_cast<int64_t>(sums.first.size()) == out.n_rows() + 1);
  const int64_t d = out.row_elements();
  with_type(out.dtype(), [&]<typename T>(T*) {
    const auto& kernels = kernels_of<T>(isa);
    pool.parallel_for(out.n_rows(), granule_rows(d), [&](int64_t begin, int64_t end) {
      std::vector<float> sum(static_cast<size_t>(d));
      for (int64_t t = begin; t < end; ++t) {
        std::fill(sum.begin(), sum.end(), 0.0F);
        const auto last = static_cast<size_t>(sums.first[static_cast<size_t>(t) + 1]);
        for (auto i = static_cast<size_t>(sums.first[static_cast<size_t>(t)]); i < last; ++i) {
          const int64_t row = sums.rows[i];
          CHECK(row >= 0 && row < x.n_rows());
          kernels.add_scaled(sum.data(), x.as<T>() + row * d, sums.weights[i], d);
        }
        T* const to = out.as<T>() + t * d;
        if constexpr (std::is_same_v<T, float>) {
          std::copy(sum.begin(), sum.end(), to);
        } else {
          kernels_for(isa).narrow(sum.data(), to, d);
        }
      }
    });
  });
}

}  // namespace testbed::cpu
