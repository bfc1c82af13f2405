// Rows and threads of the ops between the matrix products; the loops within a row are
// elementwise_kernels.hpp's.
#include "kernels/cpu/elementwise.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/elementwise_kernels.hpp"

namespace testbed::cpu {
namespace {

// A thread is worth waking for this many elements.
constexpr int64_t thread_elements = int64_t{16} << 10;

int64_t granule_rows(int64_t row_elements) {
  return std::max<int64_t>(1, thread_elements / std::max<int64_t>(1, row_elements));
}

const ElementwiseKernels& kernels_for(Isa isa) {
  CHECK(isa <= best_isa());
  if (isa >= Isa::avx512) return elementwise_avx512();
  return isa == Isa::avx2 ? elementwise_avx2() : elementwise_portable();
}

template <typename T>
const ActivationKernels<T>& kernels_of(Isa isa) {
  if constexpr (std::is_same_v<T, float>) {
    return kernels_for(isa).f32;
  } else {
    return kernels_for(isa).bf;
  }
}

// Calls run with a null pointer of the activations' element type.
template <typename Run>
void with_type(DType dtype, const Run& run) {
  CHECK(dtype == DType::F32 || dtype == DType::BF16);
  if (dtype == DType::F32) {
    run(static_cast<float*>(nullptr));
  } else {
    run(static_cast<bf16*>(nullptr));
  }
}

void check_same(TensorView a, TensorView b) {
  CHECK(a.dtype() == b.dtype() && a.n_elements() == b.n_elements());
}

// 1 / rms. A sum of squares beyond f32 would make every output zero: NaN, so that it is noticed.
float inverse_rms(float sum_squares, int64_t n, float eps) {
  if (!std::isfinite(sum_squares)) return std::numeric_limits<float>::quiet_NaN();
  return 1.0F / std::sqrt(sum_squares / static_cast<float>(n) + eps);
}

struct Rows {
  int64_t n_rows;
  int64_t n_cols;
  explicit Rows(TensorView x)
      : n_rows(x.n_elements() == 0 ? 0 : x.n_elements() / x.shape()[-1]), n_cols(x.shape()[-1]) {}
};

}  // namespace

void rms_norm(
    TensorView x, TensorView weight, float eps, TensorView out, ThreadPool& pool, Isa isa) {
  check_same(x, out);
  const Rows rows(x);
  CHECK(weight.dtype() == DType::F32 && weight.n_elements() == rows.n_cols);
  const int64_t d = rows.n_cols;
  with_type(x.dtype(), [&]<typename T>(T*) {
    const auto& kernels = kernels_of<T>(isa);
    pool.parallel_for(rows.n_rows, granule_rows(d), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* row = x.as<T>() + i * d;
        const float factor = inverse_rms(kernels.sum_squares(row, d), d, eps);
        kernels.scale(row, factor, weight.as<float>(), out.as<T>() + i * d, d);
      }
    });
  });
}

void add_rms_norm(TensorView residual,
                  TensorView x,
                  TensorView weight,
                  float eps,
                  TensorView out,
                  ThreadPool& pool,
                  Isa isa) {
  check_same(residual, x);
  check_same(residual, out);
  const Rows rows(residual);
  CHECK(weight.dtype() == DType::F32 && weight.n_elements() == rows.n_cols);
  const int64_t d = rows.n_cols;
  with_type(x.dtype(), [&]<typename T>(T*) {
    const auto& kernels = kernels_of<T>(isa);
    pool.parallel_for(rows.n_rows, granule_rows(d), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* row = residual.as<T>() + i * d;
        const float sum = kernels.add_sum_squares(row, x.as<T>() + i * d, d);
        kernels.scale(row, inverse_rms(sum, d, eps), weight.as<float>(), out.as<T>() + i * d, d);
      }
    });
  });
}

void add(TensorView residual, TensorView x, ThreadPool& pool, Isa isa) {
  check_same(residual, x);
  with_type(x.dtype(), [&]<typename T>(T*) {
    const auto& kernels = kernels_of<T>(isa);
    pool.parallel_for(x.n_elements(), thread_elements, [&](int64_t begin, int64_t end) {
      kernels.add_sum_squares(residual.as<T>() + begin, x.as<T>() + begin, end - begin);
    });
  });
}

void rope(TensorView x,
          std::span<const int64_t> positions,
          std::span<const double> inv_freq,
          double multiplier,
          ThreadPool& pool,
          Isa isa) {
  CHECK(x.shape().rank() == 3 && x.shape()[0] == static_cast<int64_t>(positions.size()));
  const int64_t n_heads = x.shape()[1];
  const int64_t head_dim = x.shape()[2];
  const int64_t half = head_dim / 2;
  CHECK(head_dim == 2 * static_cast<int64_t>(inv_freq.size()));
  with_type(x.dtype(), [&]<typename T>(T*) {
    const auto& kernels = kernels_of<T>(isa);
    const int64_t granule = granule_rows(n_heads * head_dim);
    pool.parallel_for(x.n_rows(), granule, [&](int64_t begin, int64_t end) {
      std::vector<float> table(static_cast<size_t>(head_dim));  // cosines, then sines, of one row
      float* cosine = table.data();
      float* sine = cosine + half;
      for (int64_t row = begin; row < end; ++row) {
        const auto position = static_cast<double>(positions[static_cast<size_t>(row)]);
        for (int64_t i = 0; i < half; ++i) {
          const double angle = position * inv_freq[static_cast<size_t>(i)];
          cosine[i] = static_cast<float>(std::cos(angle) * multiplier);
          sine[i] = static_cast<float>(std::sin(angle) * multiplier);
        }
        for (int64_t h = 0; h < n_heads; ++h) {
          T* head = x.as<T>() + (row * n_heads + h) * head_dim;
          kernels.rotate(head, head + half, cosine, sine, half);
        }
      }
    });
  });
}

void swiglu(TensorView gate_up, TensorView out, ThreadPool& pool, Isa isa) {
  const Rows rows(out);
  CHECK(gate_up.dtype() == out.dtype() && gate_up.n_elements() == 2 * out.n_elements());
  CHECK(gate_up.shape()[-1] == 2 * rows.n_cols);
  const int64_t f = rows.n_cols;
  if (rows.n_rows == 0) return;
  // A single row is cut too: with many columns it is worth it.
  const int64_t n_pieces = rows.n_rows == 1 ? (f + thread_elements - 1) / thread_elements : 1;
  const int64_t piece = (f + n_pieces - 1) / n_pieces;
  with_type(out.dtype(), [&]<typename T>(T*) {
    const auto& kernels = kernels_of<T>(isa);
    pool.parallel_for(rows.n_rows * n_pieces, granule_rows(piece), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / n_pieces;
        const int64_t first = i % n_pieces * piece;
        const T* gate = gate_up.as<T>() + row * 2 * f + first;
        kernels.swiglu(gate, gate + f, out.as<T>() + row * f + first, std::min(piece, f - first));
      }
    });
  });
}

void convert(TensorView from, TensorView to, ThreadPool& pool, Isa isa) {
  CHECK(from.n_elements() == to.n_elements());
  const ElementwiseKernels& kernels = kernels_for(isa);
  const bool narrow = from.dtype() == DType::F32 && to.dtype() == DType::BF16;
  CHECK(narrow || (from.dtype() == DType::BF16 && to.dtype() == DType::F32));
  pool.parallel_for(from.n_elements(), thread_elements, [&](int64_t begin, int64_t end) {
    if (narrow) {
      kernels.narrow(from.as<float>() + begin, to.as<bf16>() + begin, end - begin);
    } else {
      kernels.widen(from.as<bf16>() + begin, to.as<float>() + begin, end - begin);
    }
  });
}

void row_max(TensorView x, std::span<RowMax> out, ThreadPool& pool, Isa isa) {
  CHECK(x.dtype() == DType::F32 && x.n_rows() == static_cast<int64_t>(out.size()));
  const int64_t n = x.row_elements();
  CHECK(out.empty() || (n >= 1 && n <= std::numeric_limits<int32_t>::max()));
  const ElementwiseKernels& kernels = kernels_for(isa);
  pool.parallel_for(x.n_rows(), granule_rows(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[static_cast<size_t>(i)] = kernels.row_max(x.as<float>() + i * n, n);
    }
  });
}

}  // namespace testbed::cpu
