// TESTBED_UNROLL before a loop of few, constant rounds over an array of vectors: unrolled before
// the compiler decides what lives in registers. Without it, and at -O2, such arrays stay in memory.
#pragma once

#ifdef __clang__
#define TESTBED_UNROLL _Pragma("unroll")
#else
#define TESTBED_UNROLL _Pragma("GCC unroll 32")
#endif
