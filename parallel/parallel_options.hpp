// Choices between ways of sharding and of linking ranks that compute the same.
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

// --layout: the links that ranks use (parallel/comm/layout.hpp).
// Of GPUs: nvlink (NVLS where the switch has it), nvlink_ring (rings only), pcie (peer-to-peer),
// shm (through host memory): within a host, with any network between hosts. ib, socket: everything
// over the network, within a host too. Of processors: mpi, and shm and tcp, which are to come.
enum class Layout : uint8_t { automatic, mpi, tcp, shm, nvlink, nvlink_ring, pcie, ib, socket };
constexpr std::string_view layout_names[] = {
    "auto", "mpi", "tcp", "shm", "nvlink", "nvlink-ring", "pcie", "ib", "socket"};
constexpr std::string_view layout_name(Layout layout) {
  return layout_names[static_cast<int>(layout)];
}

}  // namespace testbed
