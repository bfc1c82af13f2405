// Choices between ways of sharding that compute the same.
#pragma once

#include <cstdint>
#include <string_view>

namespace testbed {

// Which blocks of a prompt a cp rank owns.
enum class CpPlacement : uint8_t { zigzag, contiguous };
constexpr std::string_view cp_placement_name(CpPlacement p) {
  return p == CpPlacement::zigzag ? "zigzag" : "contiguous";
}

// How tokens meet experts that other ranks hold. automatic: all_reduce where the expert group is
// the tp group, else all_to_all.
enum class ExpertExchange : uint8_t { automatic, all_to_all, all_reduce };

// What follows a row-parallel layer. reduce_scatter: sequence-parallel TP (Korthikanti et al. 2022,
// arXiv:2205.05198): reduce-scatter, norms on a slice of the rows, all-gather.
enum class TpComm : uint8_t { all_reduce, reduce_scatter };
constexpr std::string_view tp_comm_name(TpComm c) {
  return c == TpComm::all_reduce ? "all-reduce" : "reduce-scatter";
}

}  // namespace testbed
