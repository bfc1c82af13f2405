#include "runtime/probe/device_curves_json.hpp"

#include <nlohmann/json.hpp>

namespace testbed {
namespace {

using Json = nlohmann::ordered_json;

constexpr double giga = 1e9;
constexpr double tera = 1e12;
constexpr double us = 1e6;
constexpr double ns = 1e9;

Json json_of(const MemoryLevel& x) {
  return {{"level", x.name},
          {"bytes", x.n_bytes},
          {"read_gb_s", x.read_bytes_per_s / giga},
          {"write_gb_s", x.write_bytes_per_s / giga},
          {"copy_gb_s", x.copy_bytes_per_s / giga}};
}
Json json_of(const SharedMemoryRate& x) {
  return {{"read_gb_s", x.bytes_per_s / giga},
          {"bytes_per_sm_and_clock", x.bytes_per_sm_and_clock}};
}
Json json_of(const MathRate& x) {
  return {{"type", math_name(x.type)},
          {"by", x.by_library ? "library" : "loop"},
          {"tflops", x.flops / tera}};
}
Json json_of(const LibraryGemm& x) {
  return {{"type", math_name(x.type)}, {"m", x.m}, {"n", x.n}, {"k", x.k}, {"us", x.seconds * us}};
}
Json json_of(const Overheads& x) {
  return {{"eager_launch_us", x.eager_launch_s * us},
          {"graph_node_us", x.graph_node_s * us},
          {"event_us", x.event_s * us}};
}
Json json_of(const LoadLatency& x) {
  return {{"bytes", x.n_bytes}, {"ns", x.seconds * ns}, {"clocks", x.clocks}};
}
Json json_of(const OccupancyRate& x) {
  return {{"blocks_per_sm", x.blocks_per_sm},
          {"threads_per_sm", x.threads_per_sm},
          {"read_gb_s", x.read_bytes_per_s / giga}};
}
Json json_of(const StrideRate& x) {
  return {{"stride", x.stride},
          {"sectors_per_warp", x.sectors_per_warp},
          {"useful_gb_s", x.useful_bytes_per_s / giga},
          {"sector_gb_s", x.sector_bytes_per_s / giga}};
}
Json json_of(const DivergenceRate& x) { return {{"ways", x.n_ways}, {"tflops", x.flops / tera}}; }
Json json_of(const FusionSaving& x) {
  return {{"rows", x.n_rows},
          {"width", x.width},
          {"apart_bytes", x.apart_bytes},
          {"fused_bytes", x.fused_bytes},
          {"apart_us", x.apart_s * us},
          {"fused_us", x.fused_s * us}};
}
Json json_of(const DequantRate& x) {
  return {
      {"bits", x.bits}, {"read_gb_s", x.bytes_per_s / giga}, {"weights_per_s", x.weights_per_s}};
}

template <typename T>
Json list_of(const std::vector<T>& values) {
  Json array = Json::array();
  for (const T& value : values) array.push_back(json_of(value));
  return array;
}

}  // namespace

Json device_curves_json(const DeviceCurves& curves) {
  return {{"memory", list_of(curves.memory)},
          {"shared", json_of(curves.shared)},
          {"math", list_of(curves.math)},
          {"gemm", list_of(curves.gemm)},
          {"overheads", json_of(curves.overheads)},
          {"latency", list_of(curves.latency)},
          {"occupancy", list_of(curves.occupancy)},
          {"strides", list_of(curves.strides)},
          {"divergence", list_of(curves.divergence)},
          {"fusion", list_of(curves.fusion)},
          {"dequant", list_of(curves.dequant)}};
}

}  // namespace testbed
