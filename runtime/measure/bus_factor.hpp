// Bus bandwidth, as nccl-tests has it: what each link of an ideal algorithm would carry.
#pragma once

#include <optional>
#include <string_view>

namespace testbed {

// busbw / algbw of an operation on n ranks, algbw being payload / time. None for one rank (D35),
// and where none is defined.
inline std::optional<double> bus_factor(std::string_view op, int n) {
  const double size = n;
  if (n < 2) return std::nullopt;
  if (op == "all_reduce") return 2.0 * (size - 1.0) / size;
  if (op == "all_gather" || op == "reduce_scatter" || op == "all_to_all") {
    return (size - 1.0) / size;
  }
  if (op == "send_recv" || op == "broadcast") return 1.0;
  return std::nullopt;
}

}  // namespace testbed
