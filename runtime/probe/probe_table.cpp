#include "runtime/probe/probe_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "runtime/probe/device_curves_table.hpp"
#include "runtime/probe/probe_names.hpp"
#include "runtime/report/table.hpp"
#include "runtime/report/table_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed {
namespace {

constexpr double giga = 1e9;
constexpr double tera = 1e12;
// Lines of a curve that are printed: the file has them all.
constexpr size_t most_lines = 12;

// Evenly spread over [0, n), both ends included.
std::vector<size_t> some_of(size_t n) {
  std::set<size_t> chosen;
  const size_t lines = std::min(n, most_lines);
  for (size_t i = 0; i < lines; ++i) chosen.insert(lines == 1 ? 0 : i * (n - 1) / (lines - 1));
  return {chosen.begin(), chosen.end()};
}

std::string heading(const ProbeRecord& record) {
  table::Lines out;
  out.add("{}testbed probe: {}, {} rank{}",
          record.simulated ? "SIMULATED " : "",
          printable(record.description),
          record.n_ranks,
          record.n_ranks == 1 ? "" : "s");
  for (const std::string& label : record.labels) out.wrapped("! " + printable(label), "  ");
  return out.take();
}

std::string summary(const ProbeRecord& record) {
  std::string text = fmt::format("  memory read      {:>10.4g} GB/s one rank",
                                 record.memory_read_bytes_per_s / giga);
  if (record.n_ranks > 1)
    text += fmt::format(
        ", {:.4g} GB/s all {} together", record.memory_read_all_bytes_per_s / giga, record.n_ranks);
  text +=
      fmt::format("\n  peak             {:>10.4g} TFLOP/s one rank\n", record.peak_flops / tera);
  text += fmt::format("  kernel overhead  {:>10.4g} us\n", record.kernel_overhead_us);
  return text;
}

std::string gemm_table(const ProbeRecord& record) {
  if (record.gemm.empty()) return {};
  std::string text = fmt::format("\n  {:<34}{:>12}{:>12}\n", "gemm", "us", "TFLOP/s");
  for (const size_t i : some_of(record.gemm.size())) {
    const GemmPoint& p = record.gemm[i];
    const double flops =
        2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    text += fmt::format("  {:<34}{:>12.5g}{:>12.4g}\n",
                        fmt::format("{} x {} x {} {}", p.m, p.n, p.k, p.dtype),
                        p.us,
                        flops / (p.us * 1e-6) / tera);
  }
  return text;
}

std::string attention_table(const ProbeRecord& record) {
  if (record.attention.empty()) return {};
  std::string text = fmt::format("\n  {:<34}{:>12}\n", "attention", "us");
  for (const size_t i : some_of(record.attention.size())) {
    const AttentionPoint& p = record.attention[i];
    text += fmt::format("  {:<34}{:>12.5g}\n",
                        fmt::format("{} {} x {}, {}/{} heads of {}",
                                    phase_name(p.phase),
                                    p.batch,
                                    p.context,
                                    p.n_heads,
                                    p.n_kv_heads,
                                    p.head_dim),
                        p.us);
  }
  return text;
}

// The chosen algorithm by operation and group size.
std::string collective_table(const ProbeRecord& record) {
  std::map<std::pair<CommOp, int>, std::vector<const CollectivePoint*>> curves;
  for (const CollectivePoint& p : record.collectives)
    if (p.best) curves[{p.op, p.n}].push_back(&p);
  std::string text;
  for (const auto& [key, points] : curves) {
    text += fmt::format("\n  {:<18}{:>12}{:>14}{:>14}\n",
                        fmt::format("{}, n = {}", probe_op_name(key.first), key.second),
                        "us",
                        "algbw GB/s",
                        "algorithm");
    for (const size_t i : some_of(points.size())) {
      const CollectivePoint& p = *points[i];
      text += fmt::format("  {:<18}{:>12.4g}{:>14.4g}{:>14}\n",
                          human_bytes(p.bytes),
                          p.us,
                          static_cast<double>(p.bytes) / (p.us * 1e-6) / giga,
                          algorithm_name(p.algorithm));
    }
  }
  return text;
}

std::string pair_table(const ProbeRecord& record) {
  if (record.pairs.empty()) return {};
  std::string text =
      fmt::format("\n  {:<18}{:>12}{:>14}{:>14}\n", "messages", "us", "one way GB/s", "both GB/s");
  for (const PairPoint& p : record.pairs) {
    const double giga_per_us = static_cast<double>(p.bytes) / 1e-6 / giga;
    text += fmt::format("  {:<18}{:>12.4g}{:>14.4g}{:>14.4g}\n",
                        fmt::format("{} - {}, {}", p.first, p.second, human_bytes(p.bytes)),
                        p.one_way_us,
                        giga_per_us / p.one_way_us,
                        2.0 * giga_per_us / p.both_ways_us);
  }
  return text;
}

}  // namespace

std::string to_table(const ProbeRecord& record) {
  return heading(record) + summary(record) + gemm_table(record) + attention_table(record) +
         collective_table(record) + pair_table(record) +
         (record.curves ? device_curves_table(*record.curves) : std::string());
}

}  // namespace testbed
