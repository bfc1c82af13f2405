// Operands of library products: values of either sign in [0.5, 1), the same on the host and the
// device. Zeros would draw less power than a model's numbers, and so run at higher clocks.
#pragma once

#include <cstdint>

#include "kernels/base/device_spec.hpp"
#include "kernels/cuda/queue.hpp"

namespace testbed::cuda {

// What of a random word stays, and what is set in it: signs and leading mantissa bits of the
// elements stay (for tf32 those it has), exponents are set to 2^-1. int8: any value.
struct OperandBits {
  int element_bytes = 0;
  uint32_t keep = 0;
  uint32_t set = 0;
};
OperandBits operand_bits(MathType type);

constexpr uint32_t operand_word(const OperandBits& bits, uint64_t i) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15U;  // splitmix64's steps
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x ^= x >> 27;
  return (static_cast<uint32_t>(x >> 16) & bits.keep) | bits.set;
}
// Element i of an operand.
double operand_value(MathType type, int64_t i);

// words: n_bytes / 4 of them.
void fill_operand(Queue& queue, MathType type, TensorView words);

}  // namespace testbed::cuda
