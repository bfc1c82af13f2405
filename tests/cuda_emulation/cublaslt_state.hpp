// What the stand-in of cuBLASLt keeps in the opaque descriptors of cublasLt.h.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace emulation::blas {

struct Layout {
  static constexpr uint32_t expected = 0x4c41594fU;
  uint32_t magic;
  cudaDataType_t type;
  uint64_t rows;
  uint64_t cols;
  int64_t ld;
};

struct Operation {
  static constexpr uint32_t expected = 0x4f504552U;
  uint32_t magic;
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::array<int32_t, 2> transposed;  // of A and B: cublasOperation_t
  std::array<const float*, 2> scales;
};

struct Preference {
  static constexpr uint32_t expected = 0x50524546U;
  uint32_t magic;
  uint32_t reductions;                // cublasLtReductionScheme_t
  uint64_t n_workspace_bytes;         // at most
  std::array<uint32_t, 4> alignment;  // of A, B, C, D
};

// Chosen for one kind of product.
struct Algorithm {
  static constexpr uint32_t expected = 0x414c474fU;
  uint32_t magic;
  uint32_t product;  // hash of its types and sizes
  uint64_t n_workspace_bytes;
  std::array<uint32_t, 4> alignment;
};

// A descriptor's content, if it has been initialised; magic says so.
template <typename State, typename Opaque>
bool get(const Opaque* opaque, State& state) {
  static_assert(std::is_trivially_copyable_v<State> && sizeof(State) <= sizeof(Opaque));
  if (opaque == nullptr) return false;
  std::memcpy(&state, opaque, sizeof state);
  return state.magic == State::expected;
}
template <typename State, typename Opaque>
void put(Opaque* opaque, const State& state) {
  static_assert(std::is_trivially_copyable_v<State> && sizeof(State) <= sizeof(Opaque));
  std::memcpy(opaque, &state, sizeof state);
}

// Of this call: success, or the fault that a test asked for.
cublasStatus_t injected(const char* name);

}  // namespace emulation::blas
