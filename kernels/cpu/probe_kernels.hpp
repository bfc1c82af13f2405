// The loops that the probes time, one version per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace testbed::cpu {

// Reads [begin, begin + n_bytes), a multiple of 1024, aligned to 64; the result depends on every
// byte. Several streams at once: one alone leaves bandwidth unused.
using ReadLoop = uint64_t (*)(const std::byte* begin, int64_t n_bytes);
uint64_t read_portable(const std::byte* begin, int64_t n_bytes);
uint64_t read_avx2(const std::byte* begin, int64_t n_bytes);
uint64_t read_avx512(const std::byte* begin, int64_t n_bytes);

// n_steps rounds of independent multiply-adds in registers; flops_per_step counts a multiply-add as
// two. The result depends on all of them.
struct FlopLoop {
  float (*run)(int64_t n_steps);
  int64_t flops_per_step;
};
FlopLoop flops_portable();
FlopLoop flops_avx2();
FlopLoop flops_avx512();
FlopLoop flops_avx512_bf16();
// Multiply-adds of int8 into 32 bits.
FlopLoop int8_portable();
FlopLoop int8_avx2();
FlopLoop int8_avx512();
FlopLoop int8_avx512_vnni();

}  // namespace testbed::cpu
