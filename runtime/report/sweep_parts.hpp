// The pieces of a sweep's table (sweep_report.hpp).
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "runtime/report/table_parts.hpp"
#include "runtime/sweep/sweep.hpp"

namespace testbed::table {

// Points of one cluster and workload, in their order; not empty.
using Block = std::vector<const SweepResult*>;

// The degrees of splits as columns of a table. cp and ep have one only if one of them is above 1.
class SplitColumns {
 public:
  void see(const SweepPoint& point) { all_axes_ |= point.cp > 1 || point.ep > 1; }
  std::string heading() const { return line("tp", "pp", "cp", "dp", "ep"); }
  std::string of(const SweepPoint& p) const { return line(p.tp, p.pp, p.cp, p.dp, p.ep); }
  bool all_axes() const { return all_axes_; }

 private:
  template <typename Cell>
  std::string line(
      const Cell& tp, const Cell& pp, const Cell& cp, const Cell& dp, const Cell& ep) const {
    return all_axes_ ? fmt::format("  {:>3} {:>2} {:>2} {:>3} {:>3}", tp, pp, cp, dp, ep)
                     : fmt::format("  {:>4} {:>3} {:>4}", tp, pp, dp);
  }
  bool all_axes_ = false;
};

// "batch 1, context 8192, prompt 1"
std::string workload_name(const SweepPoint& point);

// The split of each point's step, its bars, and the what-ifs.
void add_phase_block(Lines& out, const Block& block, Phase phase);

// Cluster by cluster, with the reasons.
void add_crossovers(Lines& out, const Sweep& sweep);

// Best split and Pareto front of each cluster and workload.
void add_best(Lines& out, const Sweep& sweep);

}  // namespace testbed::table
