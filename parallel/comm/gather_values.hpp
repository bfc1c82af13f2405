// Small values of every rank of a group, and agreement on what one of them could not do.
#pragma once

#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "parallel/comm/communicator.hpp"

namespace testbed {

// In rank order. T is plain data.
template <typename T>
std::vector<T> gather_values(Communicator& group, const T& mine) {
  constexpr int64_t word_bytes = dtype_bytes(DType::I32, 1);
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % word_bytes == 0);
  constexpr int64_t words = static_cast<int64_t>(sizeof(T)) / word_bytes;
  const Tensor local(DType::I32, {words});
  const Tensor all(DType::I32, {group.size(), words});
  std::memcpy(local.data(), &mine, sizeof mine);
  group.all_gather(local, all);
  std::vector<T> values(static_cast<size_t>(group.size()));
  std::memcpy(values.data(), all.data(), sizeof(T) * values.size());
  return values;
}

// The ranks call it together, each with its reason or "": what the lowest rank that has one says,
// with its rank; "" if there is none. Reasons are cut after 255 bytes.
inline std::string agreed_reason(Communicator& group, const std::string& mine) {
  using Text = std::array<char, 256>;
  Text text{};
  mine.copy(text.data(), text.size() - 1);
  const std::vector<Text> texts = gather_values(group, text);
  for (size_t r = 0; r < texts.size(); ++r) {
    if (texts[r].front() != '\0') return "rank " + std::to_string(r) + ": " + texts[r].data();
  }
  return "";
}

}  // namespace testbed
