#include "runtime/probe/device_curves_table.hpp"

#include <fmt/format.h>

#include "runtime/report/table.hpp"

namespace testbed {
namespace {

constexpr double giga = 1e9;
constexpr double tera = 1e12;
constexpr double us = 1e6;

// a of b, where there is a b.
std::string share(double a, double b) {
  return b > 0.0 ? fmt::format("{:.1f} %", 100.0 * a / b) : "-";
}

std::string memory_lines(const DeviceCurves& curves) {
  std::string text =
      fmt::format("\n  {:<24}{:>14}{:>14}{:>14}\n", "memory, GB/s", "read", "write", "copy");
  for (const MemoryLevel& x : curves.memory) {
    text += fmt::format("  {:<24}{:>14.5g}{:>14.5g}{:>14.5g}\n",
                        fmt::format("{}, {}", x.name, human_bytes(x.n_bytes)),
                        x.read_bytes_per_s / giga,
                        x.write_bytes_per_s / giga,
                        x.copy_bytes_per_s / giga);
  }
  return text + fmt::format("  {:<24}{:>14.5g}    {:.1f} bytes per SM and clock\n",
                            "shared memory",
                            curves.shared.bytes_per_s / giga,
                            curves.shared.bytes_per_sm_and_clock);
}

std::string math_lines(const DeviceCurves& curves) {
  std::string text =
      fmt::format("\n  {:<24}{:>14}    {}\n", "arithmetic", "TFLOP/s", "measured by");
  for (const MathRate& x : curves.math) {
    text += fmt::format("  {:<24}{:>14.5g}    {}\n",
                        math_name(x.type),
                        x.flops / tera,
                        x.by_library ? "matrix products" : "multiply-adds in registers");
  }
  return text;
}

std::string latency_lines(const DeviceCurves& curves) {
  std::string text = fmt::format("\n  {:<24}{:>14}\n", "latency", "us");
  const auto line = [&](const std::string& what, double seconds) {
    text += fmt::format("  {:<24}{:>14.4g}\n", what, seconds * us);
  };
  line("kernel, eager", curves.overheads.eager_launch_s);
  line("kernel, in a graph", curves.overheads.graph_node_s);
  line("event", curves.overheads.event_s);
  for (const LoadLatency& x : curves.latency) {
    text += fmt::format("  {:<24}{:>14.4g}    {:.0f} clocks\n",
                        fmt::format("load of {}", human_bytes(x.n_bytes)),
                        x.seconds * us,
                        x.clocks);
  }
  return text;
}

std::string access_lines(const DeviceCurves& curves) {
  std::string text = fmt::format("\n  {:<24}{:>14}{:>14}{:>14}\n",
                                 "stride of 4 bytes",
                                 "useful GB/s",
                                 "sectors GB/s",
                                 "of stride 1");
  for (const StrideRate& x : curves.strides) {
    text += fmt::format("  {:<24}{:>14.5g}{:>14.5g}{:>14}\n",
                        x.stride,
                        x.useful_bytes_per_s / giga,
                        x.sector_bytes_per_s / giga,
                        share(x.useful_bytes_per_s, curves.strides.front().useful_bytes_per_s));
  }
  text += fmt::format("\n  {:<24}{:>14}\n", "threads per SM", "read GB/s");
  for (const OccupancyRate& x : curves.occupancy) {
    text += fmt::format("  {:<24}{:>14.5g}\n", x.threads_per_sm, x.read_bytes_per_s / giga);
  }
  return text;
}

std::string saving_lines(const DeviceCurves& curves) {
  std::string text =
      fmt::format("\n  {:<24}{:>14}{:>14}\n", "branches of a warp", "TFLOP/s", "of one");
  for (const DivergenceRate& x : curves.divergence) {
    text += fmt::format("  {:<24}{:>14.4g}{:>14}\n",
                        x.n_ways,
                        x.flops / tera,
                        share(x.flops, curves.divergence.front().flops));
  }
  text += fmt::format(
      "\n  {:<24}{:>14}{:>14}{:>14}\n", "add + norm", "apart us", "fused us", "of apart");
  for (const FusionSaving& x : curves.fusion) {
    text += fmt::format("  {:<24}{:>14.4g}{:>14.4g}{:>14}\n",
                        fmt::format("{} x {}", x.n_rows, x.width),
                        x.apart_s * us,
                        x.fused_s * us,
                        share(x.fused_s, x.apart_s));
  }
  text += fmt::format("\n  {:<24}{:>14}{:>14}\n", "weights to bf16", "read GB/s", "of 16 bits");
  for (const DequantRate& x : curves.dequant) {
    text += fmt::format("  {:<24}{:>14.5g}{:>14}\n",
                        fmt::format("{} bits", x.bits),
                        x.bytes_per_s / giga,
                        share(x.bytes_per_s, curves.dequant.front().bytes_per_s));
  }
  return text;
}

}  // namespace

std::string device_curves_table(const DeviceCurves& curves) {
  return memory_lines(curves) + math_lines(curves) + latency_lines(curves) + access_lines(curves) +
         saving_lines(curves);
}

}  // namespace testbed
