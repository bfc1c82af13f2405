// Attention's inner step with AVX2. Intrinsics and functions of internal linkage only: nothing here
// may be merged with a function that runs on a lesser processor.
// The loops are over the Lanes before them, so the order counts.
// clang-format off
#include "kernels/cpu/lanes_avx2.hpp"
#include "kernels/cpu/attention_loops.hpp"
// clang-format on

namespace testbed::cpu {

void attend_chunk_avx2(const AttentionChunk& c) { attend(c); }

}  // namespace testbed::cpu
