#include "runtime/accept/collective_values.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.hpp"
#include "kernels/base/hash.hpp"

namespace testbed {
namespace {

// Every whole number up to here is a value of the type: 8 significant bits, and 24.
int64_t exact_up_to(DType dtype) {
  return dtype == DType::BF16 ? int64_t{1} << 8 : int64_t{1} << 24;
}

}  // namespace

// Whatever the order and grouping in which an algorithm adds, and wherever it rounds, a partial sum
// is of whole numbers that are not negative: it is itself a whole number of at most n * most. If
// that is exactly representable, no rounding ever changes anything. So most = limit / n. For more
// than limit / 2 ranks that would leave nothing to tell values apart: then only every stride-th
// rank contributes to an element, at most ceil(n / stride) <= limit / 2 of them, and most >= 2.
CollectiveValues::CollectiveValues(DType dtype, int n_ranks, bool summed, uint64_t seed)
    : dtype_(dtype), n_ranks_(n_ranks), seed_(seed) {
  CHECK((dtype == DType::F32 || dtype == DType::BF16) && n_ranks >= 1);
  const int64_t limit = exact_up_to(dtype);
  const int64_t n = summed ? n_ranks : 1;
  stride_ = (2 * n + limit - 1) / limit;
  most_ = limit / ((n + stride_ - 1) / stride_);
}

int64_t CollectiveValues::value(int rank, int64_t call, int64_t offset) const {
  const int64_t place = offset % period;
  if ((rank + place) % stride_ != 0) return 0;
  const uint64_t of_call = mix64(seed_ ^ mix64(static_cast<uint64_t>(call)));
  const uint64_t draw =
      mix64(of_call ^ (static_cast<uint64_t>(rank) << 32U) ^ static_cast<uint64_t>(place));
  // The upper half, scaled to 0 .. most - 1.
  return 1 + static_cast<int64_t>(((draw >> 32U) * static_cast<uint64_t>(most_)) >> 32U);
}

int64_t CollectiveValues::sum(int64_t call, int64_t offset) const {
  int64_t total = 0;
  for (int rank = 0; rank < n_ranks_; ++rank) total += value(rank, call, offset);
  return total;
}

uint32_t CollectiveValues::bits_of(double number) const {
  const auto single = static_cast<float>(number);
  return dtype_ == DType::BF16 ? to_bf16(single).bits : std::bit_cast<uint32_t>(single);
}

double CollectiveValues::number_of(uint32_t bits) const {
  if (dtype_ == DType::F32) return std::bit_cast<float>(bits);
  return to_f32(bf16{static_cast<uint16_t>(bits)});
}

template <typename Number>
std::vector<std::byte> CollectiveValues::repeated(int64_t first, int64_t n, Number&& number) const {
  const auto element_bytes = static_cast<size_t>(dtype_bytes(dtype_, 1));
  std::vector<std::byte> bytes(static_cast<size_t>(n) * element_bytes);
  const int64_t n_own = std::min(n, period);
  for (int64_t i = 0; i < n_own; ++i) {
    const uint32_t bits = bits_of(static_cast<double>(number(first + i)));  // little-endian
    std::memcpy(bytes.data() + static_cast<size_t>(i) * element_bytes, &bits, element_bytes);
  }
  for (size_t done = static_cast<size_t>(n_own) * element_bytes; done < bytes.size();) {
    const size_t more = std::min(done, bytes.size() - done);  // done is whole periods
    std::memcpy(bytes.data() + done, bytes.data(), more);
    done += more;
  }
  return bytes;
}

std::vector<std::byte> CollectiveValues::elements_of(int rank,
                                                     int64_t call,
                                                     int64_t first,
                                                     int64_t n) const {
  return repeated(first, n, [&](int64_t offset) { return value(rank, call, offset); });
}

std::vector<std::byte> CollectiveValues::elements_of_sum(int64_t call,
                                                         int64_t first,
                                                         int64_t n) const {
  return repeated(first, n, [&](int64_t offset) { return sum(call, offset); });
}

}  // namespace testbed
