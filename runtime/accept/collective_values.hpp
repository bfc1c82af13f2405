// The values that an acceptance sends through collectives: whole numbers that seed, rank, call and
// offset tell, and small enough that every sum of them is exact, so that each element that comes
// out is compared bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/dtype.hpp"

namespace testbed {

class CollectiveValues {
 public:
  // F32 or BF16. summed: the ranks' values are added up; else they are only copied.
  CollectiveValues(DType dtype, int n_ranks, bool summed, uint64_t seed);

  DType dtype() const { return dtype_; }
  int n_ranks() const { return n_ranks_; }

  // What a rank contributes to a call at an offset of the payload: 1 .. most(). Of many ranks not
  // all contribute everywhere: 0 where this one does not.
  int64_t value(int rank, int64_t call, int64_t offset) const;
  int64_t sum(int64_t call, int64_t offset) const;  // over the ranks
  int64_t most() const { return most_; }

  // Values repeat after so many offsets. A prime, so that a block which arrives in the place of
  // another, a power of two of elements away, is seen.
  static constexpr int64_t period = 8191;

  // The elements of offsets [first, first + n) in dtype: of one rank, and summed over the ranks.
  std::vector<std::byte> elements_of(int rank, int64_t call, int64_t first, int64_t n) const;
  std::vector<std::byte> elements_of_sum(int64_t call, int64_t first, int64_t n) const;

  // An element's bits, in the low bits; and what number they are.
  uint32_t bits_of(double number) const;
  double number_of(uint32_t bits) const;
  int n_bits() const { return static_cast<int>(8 * dtype_bytes(dtype_, 1)); }

 private:
  template <typename Number>
  std::vector<std::byte> repeated(int64_t first, int64_t n, Number&& number) const;

  DType dtype_;
  int n_ranks_;
  uint64_t seed_;
  int64_t stride_ = 1;  // every stride-th rank contributes to an element
  int64_t most_ = 1;
};

}  // namespace testbed
