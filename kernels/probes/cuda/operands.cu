// Bound: memory, each word is written once.
#include <bit>
#include <cmath>

#include "kernels/probes/cuda/operands.hpp"
#include "kernels/probes/cuda/probe_code.cuh"

namespace testbed::cuda {
namespace {

constexpr int n_threads = 256;

__global__ void fill_words(uint32_t* words, int64_t n, OperandBits bits) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) words[i] = operand_word(bits, static_cast<uint64_t>(i));
}

// Sign, exponent, mantissa of an element.
double float_value(uint32_t element, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>(element >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const uint32_t mantissa = element & ((1U << mantissa_bits) - 1);
  const double value = std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
  return (element >> (exponent_bits + mantissa_bits) & 1U) != 0 ? -value : value;
}

}  // namespace

OperandBits operand_bits(MathType type) {
  switch (type) {
    case MathType::f32:
      return {4, 0x807fffffU, 0x3f000000U};
    case MathType::tf32:
      return {4, 0x807fe000U, 0x3f000000U};
    case MathType::f16:
      return {2, 0x83ff83ffU, 0x38003800U};
    case MathType::bf16:
      return {2, 0x807f807fU, 0x3f003f00U};
    case MathType::fp8:
      return {1, 0x87878787U, 0x30303030U};
    case MathType::int8:
      return {1, 0xffffffffU, 0};
    default:
      CHECK(false);
      return {};
  }
}

double operand_value(MathType type, int64_t i) {
  const OperandBits bits = operand_bits(type);
  const int per_word = 4 / bits.element_bytes;
  const int width = 8 * bits.element_bytes;
  const uint32_t word = operand_word(bits, static_cast<uint64_t>(i / per_word));
  const uint32_t element = word >> (i % per_word * width) & (0xffffffffU >> (32 - width));
  switch (type) {
    case MathType::f16:
      return float_value(element, 5, 10);
    case MathType::bf16:
      return float_value(element, 8, 7);
    case MathType::fp8:
      return float_value(element, 4, 3);
    case MathType::int8:
      return static_cast<int8_t>(element);
    default:
      return std::bit_cast<float>(element);
  }
}

void fill_operand(Queue& queue, MathType type, TensorView words) {
  const int64_t n = words.n_bytes() / 4;
  CHECK(n > 0);
  launch(queue,
         fill_words,
         {grid_of(divide_up(n, n_threads)), dim3(n_threads)},
         static_cast<uint32_t*>(words.data()),
         n,
         operand_bits(type));
}

}  // namespace testbed::cuda
