// Gated activations: two elements read, one written. Bound: memory.
#include "kernels/cuda/row_code.cuh"
#include "kernels/cuda/rows.hpp"

namespace testbed::cuda {
namespace {

// x sigmoid(-y). The divisor stays below 2^126, up to where __fdividef is good to two units in the
// last place (CUDA C++ Programming Guide, intrinsic functions); so x = -inf gives no NaN either.
__device__ inline float sigmoid_times(float x, float y) {
  return __fdividef(x, 1.0F + expf(fminf(y, 87.0F)));
}

__device__ inline float silu(float gate, float up) { return sigmoid_times(gate, -gate) * up; }

// g / 2 (1 + tanh(z)) = g / (1 + exp(-2z)), z = sqrt(2 / pi) (g + 0.044715 g^3).
__device__ inline float gelu_tanh(float gate, float up) {
  constexpr float minus_2_root = -1.5957691216F;
  const float inner = 0.044715F * minus_2_root * (gate * gate) + minus_2_root;
  return sigmoid_times(gate, gate * inner) * up;
}

// NaN fails the comparisons: it passes on.
__device__ inline float clamped_swiglu(float gate, float up) {
  const float g = gate > 7.0F ? 7.0F : gate;
  const float least = up < -7.0F ? -7.0F : up;
  const float u = least > 7.0F ? 7.0F : least;
  return sigmoid_times(g, -1.702F * g) * (u + 1.0F);
}

// gate and up: rows `pitch` elements apart; out [m, f].
template <float (*value)(float, float), typename T>
__global__ void gate_rows(
    const T* gate, const T* up, T* out, int64_t m, int64_t f, int64_t pitch, bool wide) {
  for_pieces(m, f, [&](int64_t row, int64_t column, int count) {
    const int64_t at = row * pitch + column;
    const Piece<T> gates = load_piece(gate + at, count, wide);
    const Piece<T> ups = load_piece(up + at, count, wide);
    float g[piece];
    float u[piece];
    unpack(gates, g);
    unpack(ups, u);
    for (int j = 0; j < piece; ++j) g[j] = value(g[j], u[j]);
    store_values(out + row * f + column, count, wide, g);
  });
}

template <typename T>
struct GateAndUp {
  const T* gate;
  const T* up;
  int64_t pitch;  // elements
};

template <float (*value)(float, float), typename T>
void run(Queue& queue, const GateAndUp<T>& in, TensorView out) {
  if (out.n_elements() == 0) return;
  const int64_t f = out.shape()[-1];
  const int64_t m = out.n_elements() / f;
  const bool wide = is_wide(in.gate, row_bytes(out)) && is_wide(in.up) && is_wide(out.data());
  launch(queue,
         gate_rows<value, T>,
         row_shape(m, f),
         in.gate,
         in.up,
         out.as<T>(),
         m,
         f,
         in.pitch,
         wide);
}

template <typename T>
void run(Queue& queue, Activation activation, const GateAndUp<T>& in, TensorView out) {
  switch (activation) {
    case Activation::silu:
      return run<silu>(queue, in, out);
    case Activation::gelu_tanh:
      return run<gelu_tanh>(queue, in, out);
    case Activation::clamped_swiglu:
      return run<clamped_swiglu>(queue, in, out);
  }
  check_failed("known activation", __FILE__, __LINE__);
}

}  // namespace

void gated_activation(Queue& queue, Activation activation, TensorView gate_up, TensorView out) {
  const int64_t f = out.shape()[-1];
  CHECK(gate_up.dtype() == out.dtype() && gate_up.n_elements() == 2 * out.n_elements());
  CHECK(gate_up.shape()[-1] == 2 * f);
  with_type(out.dtype(), [&]<typename T>(T*) {
    const T* gate = gate_up.as<T>();
    run(queue, activation, GateAndUp<T>{gate, gate + f, 2 * f}, out);
  });
}

void gated_activation(
    Queue& queue, Activation activation, TensorView gate, TensorView up, TensorView out) {
  CHECK(gate.dtype() == out.dtype() && gate.n_elements() == out.n_elements());
  CHECK(up.dtype() == out.dtype() && up.n_elements() == out.n_elements());
  with_type(out.dtype(), [&]<typename T>(T*) {
    run(queue, activation, GateAndUp<T>{gate.as<T>(), up.as<T>(), out.shape()[-1]}, out);
  });
}

}  // namespace testbed::cuda
