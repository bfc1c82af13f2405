// Rows and threads of the ops between the matrix products; the loops within a row are
// elementwise_kernels.hpp's.
#include "kernels/cpu/elementwise.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/elementwise_types.hpp"

namespace testbed::cpu {
namespace {

void check_same(TensorView a, TensorView b) {
  CHECK(a.dtype() == b.dtype() && a.n_elements() == b.n_elements());
}

// 1 / rms. A sum of squares beyond f32 would make every output zero: NaN, so that it is noticed.
float inverse_rms(float sum_squares, int64_t n, float eps) {
  if (!std::isfinite(sum_squares)) return std::numeric_limits<float>::quiet_NaN();
  return 1.0F / std::sqrt(sum_squares / static_cast<float>(n) + eps);
}

// What an element costs a norm, beside one that is added or copied.
constexpr int64_t norm_weight = 4;

struct Rows {
  int64_t n_rows;
  int64_t n_cols;
  explicit Rows(TensorView x)
      : n_rows(x.n_elements() == 0 ? 0 : x.n_elements() / x.shape()[-1]), n_cols(x.shape()[-1]) {}
};

// Rotates heads by a row of a RotationTables::Table. Interleaved pairs are first laid out as two
// halves.
template <typename T>
class HeadRotation {
 public:
  HeadRotation(const RopeFrequencies& frequencies, Isa isa)
      : interleaved_(frequencies.interleaved),
        kernels_(kernels_of<T>(isa)),
        half_(static_cast<int64_t>(frequencies.inv_freq.size())),
        halves_(static_cast<size_t>(interleaved_ ? 2 * half_ : 0)) {}

  void rotate(T* head, const float* cosine, const float* sine) {  // [2 * half]
    if (!interleaved_) {
      kernels_.rotate(head, head + half_, cosine, sine, half_);
      return;
    }
    T* low = halves_.data();
    T* high = low + half_;
    for (int64_t i = 0; i < half_; ++i) {
      low[i] = head[2 * i];
      high[i] = head[2 * i + 1];
    }
    kernels_.rotate(low, high, cosine, sine, half_);
    for (int64_t i = 0; i < half_; ++i) {
      head[2 * i] = low[i];
      head[2 * i + 1] = high[i];
    }
  }

 private:
  bool interleaved_;
  const ActivationKernels<T>& kernels_;
  int64_t half_;
  std::vector<T> halves_;
};

void fill(RotationTables::Table& table, ThreadPool& pool) {
  const auto half = static_cast<int64_t>(table.inv_freq.size());
  const auto m = static_cast<int64_t>(table.positions.size());
  table.values.resize(static_cast<size_t>(2 * half * m));
  // A cosine and a sine in double are worth some 64 elements of other work.
  pool.parallel_for(m, granule_rows(64 * half), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto position = static_cast<double>(table.positions[static_cast<size_t>(row)]);
      float* cosine = table.values.data() + 2 * half * row;
      for (int64_t i = 0; i < half; ++i) {
        const double angle = position * table.inv_freq[static_cast<size_t>(i)];
        cosine[i] = static_cast<float>(std::cos(angle) * table.multiplier);
        cosine[half + i] = static_cast<float>(std::sin(angle) * table.multiplier);
      }
    }
  });
}

// Where the gates and ups [m, f] are; their rows are `pitch` elements apart.
template <typename T>
struct GateAndUp {
  const T* gate;
  const T* up;
  int64_t pitch;
};

template <typename T>
void gate_rows(
    Activation activation, const GateAndUp<T>& in, TensorView out, ThreadPool& pool, Isa isa) {
  const Rows rows(out);
  const int64_t f = rows.n_cols;
  if (rows.n_rows == 0) return;
  // A single row is cut too: with many columns it is worth it.
  const int64_t n_pieces = rows.n_rows == 1 ? (f + thread_elements - 1) / thread_elements : 1;
  const int64_t piece = (f + n_pieces - 1) / n_pieces;
  const auto run = kernels_of<T>(isa).gated[static_cast<size_t>(activation)];
  pool.parallel_for(rows.n_rows * n_pieces, granule_rows(piece), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / n_pieces;
      const int64_t first = i % n_pieces * piece;
      const int64_t at = row * in.pitch + first;
      run(in.gate + at, in.up + at, out.as<T>() + row * f + first, std::min(piece, f - first));
    }
  });
}

}  // namespace

void rms_norm(
    TensorView x, TensorView weight, float eps, TensorView out, ThreadPool& pool, Isa isa) {
  check_same(x, out);
  const Rows rows(x);
  CHECK(weight.dtype() == DType::F32 && weight.n_elements() == rows.n_cols);
  const int64_t d = rows.n_cols;
  with_type(x.dtype(), [&]<typename T>(T*) {
    const auto& kernels = kernels_of<T>(isa);
    pool.parallel_for(rows.n_rows, granule_rows(norm_weight * d), [&](int64_t begin, int64_t end) {
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
    pool.parallel_for(rows.n_rows, granule_rows(norm_weight * d), [&](int64_t begin, int64_t end) {
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

const RotationTables::Table& RotationTables::of(std::span<const int64_t> positions,
                                                const RopeFrequencies& frequencies,
                                                ThreadPool& pool) {
  const auto is = [&](const Table& table) {
    return table.multiplier == frequencies.multiplier &&
           std::ranges::equal(table.inv_freq, frequencies.inv_freq) &&
           std::ranges::equal(table.positions, positions);
  };
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (is(tables_[i])) return tables_[last_ = i];
  }
  last_ = 1 - last_;
  Table& table = tables_[last_];
  table.positions.assign(positions.begin(), positions.end());
  table.inv_freq.assign(frequencies.inv_freq.begin(), frequencies.inv_freq.end());
  table.multiplier = frequencies.multiplier;
  fill(table, pool);
  return table;
}

void rope(TensorView x,
          std::span<const int64_t> positions,
          const RopeFrequencies& frequencies,
          RotationTables& tables,
          ThreadPool& pool,
          Isa isa) {
  CHECK(x.shape().rank() == 3 && x.shape()[0] == static_cast<int64_t>(positions.size()));
  const int64_t n_heads = x.shape()[1];
  const int64_t head_dim = x.shape()[2];
  CHECK(head_dim == 2 * static_cast<int64_t>(frequencies.inv_freq.size()));
  const RotationTables::Table& table = tables.of(positions, frequencies, pool);
  with_type(x.dtype(), [&]<typename T>(T*) {
    const int64_t granule = granule_rows(n_heads * head_dim);
    pool.parallel_for(x.n_rows(), granule, [&](int64_t begin, int64_t end) {
      HeadRotation<T> rotation(frequencies, isa);
      for (int64_t row = begin; row < end; ++row) {
        const float* cosine = table.values.data() + row * head_dim;
        for (int64_t h = 0; h < n_heads; ++h) {
          rotation.rotate(
              x.as<T>() + (row * n_heads + h) * head_dim, cosine, cosine + head_dim / 2);
        }
      }
    });
  });
}

void rope(TensorView x,
          std::span<const int64_t> positions,
          const RopeFrequencies& frequencies,
          ThreadPool& pool,
          Isa isa) {
  RotationTables tables;
  rope(x, positions, frequencies, tables, pool, isa);
}

void gated_activation(
    Activation activation, TensorView gate_up, TensorView out, ThreadPool& pool, Isa isa) {
  const int64_t f = Rows(out).n_cols;
  CHECK(gate_up.dtype() == out.dtype() && gate_up.n_elements() == 2 * out.n_elements());
  CHECK(gate_up.shape()[-1] == 2 * f);
  with_type(out.dtype(), [&]<typename T>(T*) {
    const T* gate = gate_up.as<T>();
    gate_rows(activation, GateAndUp<T>{gate, gate + f, 2 * f}, out, pool, isa);
  });
}

void gated_activation(Activation activation,
                      TensorView gate,
                      TensorView up,
                      TensorView out,
                      ThreadPool& pool,
                      Isa isa) {
  check_same(gate, out);
  check_same(up, out);
  with_type(out.dtype(), [&]<typename T>(T*) {
    const GateAndUp<T> in{gate.as<T>(), up.as<T>(), Rows(out).n_cols};
    gate_rows(activation, in, out, pool, isa);
  });
}

void scale(TensorView x, float factor, ThreadPool& pool, Isa isa) {
  with_type(x.dtype(), [&]<typename T>(T*) {
    pool.parallel_for(x.n_elements(), thread_elements, [&](int64_t begin, int64_t end) {
      kernels_of<T>(isa).multiply(x.as<T>() + begin, factor, end - begin);
    });
  });
}

void softcap(TensorView x, float cap, ThreadPool& pool, Isa isa) {
  CHECK(x.dtype() == DType::F32);
  pool.parallel_for(x.n_elements(), thread_elements, [&](int64_t begin, int64_t end) {
    kernels_for(isa).softcap(x.as<float>() + begin, cap, end - begin);
  });
}

bool all_finite(TensorView x, ThreadPool& pool, Isa isa) {
  std::atomic<bool> finite = true;
  with_type(x.dtype(), [&]<typename T>(T*) {
    pool.parallel_for(x.n_elements(), thread_elements, [&](int64_t begin, int64_t end) {
      if (!kernels_of<T>(isa).finite(x.as<T>() + begin, end - begin)) finite = false;
    });
  });
  return finite;
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

// Fewer rows than threads are cut: in decoding a row of logits is long.
void row_max(TensorView x, std::span<RowMax> out, ThreadPool& pool, Isa isa) {
  CHECK(x.dtype() == DType::F32 && x.n_rows() == static_cast<int64_t>(out.size()));
  const int64_t n = x.row_elements();
  CHECK(out.empty() || (n >= 1 && n <= std::numeric_limits<int32_t>::max()));
  const ElementwiseKernels& kernels = kernels_for(isa);
  const bool few = x.n_rows() < pool.n_threads();
  const int64_t n_pieces = few ? std::clamp<int64_t>(n / thread_elements, 1, pool.n_threads()) : 1;
  const int64_t piece = (n + n_pieces - 1) / n_pieces;
  std::vector<RowMax> parts(static_cast<size_t>(x.n_rows() * n_pieces));
  pool.parallel_for(x.n_rows() * n_pieces, granule_rows(piece), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % n_pieces * piece;
      RowMax& part = parts[static_cast<size_t>(i)];
      part = kernels.row_max(x.as<float>() + i / n_pieces * n + first, std::min(piece, n - first));
      part.index += static_cast<int32_t>(first);
    }
  });
  for (size_t row = 0; row < out.size(); ++row) {
    const auto of_row = std::span(parts).subspan(row * static_cast<size_t>(n_pieces),
                                                 static_cast<size_t>(n_pieces));
    out[row] = of_row.front();
    for (const RowMax& part : of_row.subspan(1)) {
      if (part.value > out[row].value) {
        out[row].value = part.value;
        out[row].index = part.index;
      }
      out[row].finite = out[row].finite && part.finite;
    }
  }
}

}  // namespace testbed::cpu
