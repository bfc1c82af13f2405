// The probes' loops without intrinsics.
#include <cstring>

#include "kernels/cpu/probe_kernels.hpp"

namespace testbed::cpu {

uint64_t read_portable(const std::byte* begin, int64_t n_bytes) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i < n_bytes; i += 64) {
    uint64_t words[8];
    std::memcpy(words, begin + i, sizeof(words));
    for (int j = 0; j < 8; ++j) sums[j] += words[j];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

namespace {

float run(int64_t n_steps) {
  constexpr int n = 48;
  float sums[n];
  for (int i = 0; i < n; ++i) sums[i] = static_cast<float>(i);
  for (int64_t step = 0; step < n_steps; ++step) {
    for (float& sum : sums) sum = sum * 0.5F + 1.0F;
  }
  float total = 0.0F;
  for (const float sum : sums) total += sum;
  return total;
}

}  // namespace

namespace {

float run_int8(int64_t n_steps) {
  constexpr int n = 64;
  int8_t a[n];
  int8_t b[n];
  int32_t sums[n] = {};
  for (int i = 0; i < n; ++i) {
    a[i] = static_cast<int8_t>(i);
    b[i] = static_cast<int8_t>(1 - i % 3);
  }
  for (int64_t step = 0; step < n_steps; ++step) {
    __asm__ volatile("" : : "r"(a), "r"(b) : "memory");  // read anew each time
    for (int i = 0; i < n; ++i) sums[i] += int32_t{a[i]} * int32_t{b[i]};
  }
  float total = 0.0F;
  for (const int32_t sum : sums) total += static_cast<float>(sum);
  return total;
}

}  // namespace

FlopLoop int8_portable() { return {run_int8, int64_t{2} * 64}; }

FlopLoop flops_portable() { return {run, int64_t{2} * 48}; }

}  // namespace testbed::cpu
