// Partial results of attention: normalised outputs with the log-sum-exp of their scores. A row of
// either is one (query, head).
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention.hpp"

namespace testbed::cpu {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

void check_partial(TensorView out, TensorView lse) {
  CHECK(out.dtype() == DType::F32 && lse.dtype() == DType::F32 && out.shape().rank() == 3);
  CHECK(lse.n_elements() == out.shape()[0] * out.shape()[1]);
}

void merge_row(float* total, float& total_lse, const float* part, float part_lse, int64_t dim) {
  if (part_lse == minus_infinity) return;
  const float maximum = std::max(total_lse, part_lse);
  const float keep = std::exp(total_lse - maximum);
  const float add = std::exp(part_lse - maximum);
  const float sum = keep + add;
  for (int64_t d = 0; d < dim; ++d) total[d] = total[d] * (keep / sum) + part[d] * (add / sum);
  total_lse = maximum + std::log(sum);
}

// What of the weight stays beside a sink: exp(lse) / (exp(lse) + exp(sink)).
float share(float lse, float sink) {
  return lse == minus_infinity ? 0.0F : 1.0F / (1.0F + std::exp(sink - lse));
}

template <typename Store>
void finish_rows(
    TensorView total, TensorView lse, TensorView sinks, ThreadPool& pool, Store&& put) {
  const int64_t n_heads = total.shape()[1];
  const int64_t dim = total.shape()[2];
  const float* in = total.as<float>();
  pool.parallel_for(total.n_rows() * n_heads, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float factor =
          sinks.empty() ? 1.0F : share(lse.as<float>()[row], sinks.as<float>()[row % n_heads]);
      for (int64_t i = row * dim; i < (row + 1) * dim; ++i) put(i, in[i] * factor);
    }
  });
}

}  // namespace

void merge_attention(TensorView total,
                     TensorView total_lse,
                     TensorView part,
                     TensorView part_lse,
                     ThreadPool& pool) {
  check_partial(total, total_lse);
  check_partial(part, part_lse);
  CHECK(total.shape() == part.shape());
  const int64_t dim = total.shape()[2];
  auto* out = total.as<float>();
  auto* out_lse = total_lse.as<float>();
  const float* in = part.as<float>();
  const float* in_lse = part_lse.as<float>();
  pool.parallel_for(total_lse.n_elements(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      merge_row(out + row * dim, out_lse[row], in + row * dim, in_lse[row], dim);
    }
  });
}

void finish_attention(
    TensorView total, TensorView total_lse, TensorView sinks, TensorView out, ThreadPool& pool) {
  check_partial(total, total_lse);
  CHECK(out.n_elements() == total.n_elements());
  CHECK(sinks.empty() || (sinks.dtype() == DType::F32 && sinks.n_elements() == total.shape()[1]));
  if (out.dtype() == DType::F32) {
    auto* to = out.as<float>();
    finish_rows(total, total_lse, sinks, pool, [to](int64_t i, float x) { to[i] = x; });
  } else {
    auto* to = out.as<bf16>();
    finish_rows(total, total_lse, sinks, pool, [to](int64_t i, float x) { to[i] = to_bf16(x); });
  }
}

}  // namespace testbed::cpu
