#include "kernels/sim/op_time.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/base/errors.hpp"
#include "kernels/cost.hpp"

namespace testbed {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

double seconds(double amount, double efficiency, double peak_per_s) {
  return amount / (efficiency * peak_per_s);
}

// Output tiles [rows, columns] that tensor-core GEMM libraries choose from (16 rows are the least
// that a tensor core takes), and in how many parts they split K when the tiles do not fill the SMs.
struct Tile {
  int64_t m;
  int64_t n;
};
constexpr std::array<Tile, 8> tiles{
    {{256, 128}, {128, 256}, {128, 128}, {64, 128}, {128, 64}, {64, 64}, {32, 128}, {16, 128}}};
constexpr std::array<int64_t, 6> k_splits{1, 2, 4, 8, 16, 32};
// A tile loads (m + n) values for m n products: each doubling of a side's share of that traffic
// over the largest tile's costs this fraction of its rate.
constexpr double small_tile_cost = 0.2;

// Every SM works through ceil(tiles / n_sm) whole tiles, and pays for each one's pipeline fill. The
// best tile shape and split counts, as a library picks them. Several matrices are one grouped
// product: its tiles are those of all of them, each with the mean of their rows.
double tiled_compute_s(const DeviceSpec& device,
                       const OpTiming& timing,
                       const OpShape& shape,
                       double peak_flops) {
  const int64_t n_sm = device.chip.n_sm;
  const int64_t rows = ceil_div(shape.m, shape.n_matrices);
  const double sm_flops = timing.compute_efficiency * peak_flops / static_cast<double>(n_sm);
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : tiles) {
    const int64_t n_tiles = shape.n_matrices * ceil_div(rows, tile.m) * ceil_div(shape.n, tile.n);
    const auto tile_m = static_cast<double>(tile.m);
    const auto tile_n = static_cast<double>(tile.n);
    const double slowdown = 1.0 + small_tile_cost * (128.0 / tile_m + 128.0 / tile_n - 1.5);
    for (const int64_t split : k_splits) {
      const auto waves = static_cast<double>(ceil_div(n_tiles * split, n_sm));
      const double depth =
          static_cast<double>(shape.k) / static_cast<double>(split) + device.timing.tile_fill_k;
      best = std::min(best, waves * 2.0 * tile_m * tile_n * depth * slowdown / sm_flops);
    }
  }
  return best;
}

// (a^4 + b^4)^(1/4): max, but near the ridge both limits slow a kernel down.
double near_ridge(double a, double b) {
  const double larger = std::max(a, b);
  if (larger <= 0.0) return 0.0;
  const double ratio = std::min(a, b) / larger;
  const double square = ratio * ratio;
  return larger * std::sqrt(std::sqrt(1.0 + square * square));
}

// Of the quantised weights of an op, once. An infinite peak drops it like other arithmetic.
double expansion_s(const DeviceSpec& device, const OpCost& cost, MathType math) {
  if (cost.expansion_ops == 0 || std::isinf(device.peak_flops.at(math))) return 0.0;
  const ChipSpec& chip = device.chip;
  if (chip.n_sm <= 0 || chip.boost_hz <= 0.0) {
    throw ConfigError("device " + device.name +
                      ": quantised weights need n_sm and boost_mhz in its [chip]: the time to " +
                      "expand them follows from these");
  }
  return static_cast<double>(cost.expansion_ops) /
         (static_cast<double>(chip.n_sm * lanes_per_sm) * chip.boost_hz);
}

// Whether weights are expanded as they are multiplied (kernels/cuda): experts' always are.
bool is_fused(OpKind kind, const OpShape& shape) {
  return kind == OpKind::expert_linear || shape.m <= most_fused_rows;
}

// How often an op expands each of its weights: fused ones for each tile of rows.
int64_t n_expansions(OpKind kind, const OpShape& shape) {
  if (kind != OpKind::expert_linear) return 1;
  return ceil_div(ceil_div(shape.m, shape.n_matrices), most_fused_rows);
}

double linear_s(const DeviceSpec& device,
                const OpTiming& timing,
                OpKind kind,
                const OpCost& cost,
                const OpShape& shape,
                MathType math) {
  const double peak = device.peak_flops.at(math);
  const auto memory_s = [&](int64_t n_bytes) {
    return seconds(
        static_cast<double>(n_bytes), timing.memory_efficiency, device.memory_bytes_per_s);
  };
  const bool in_tiles = device.timing.tile_fill_k > 0.0 && device.chip.n_sm > 0;
  // What overlaps.
  const auto together = [&](double arithmetic, double memory) {
    return in_tiles ? near_ridge(arithmetic, memory) : std::max(arithmetic, memory);
  };
  const double product =
      in_tiles ? tiled_compute_s(device, timing, shape, peak)
               : seconds(static_cast<double>(cost.flops), timing.compute_efficiency, peak);
  const double expansion = expansion_s(device, cost, math);
  if (expansion == 0.0) return together(product, memory_s(cost.memory_bytes()));
  if (is_fused(kind, shape)) {
    const auto times = static_cast<double>(n_expansions(kind, shape));
    return together(times * expansion + product, memory_s(cost.memory_bytes()));
  }
  // One kernel after the other; the expanded weights stay in the L2 cache between them.
  return together(expansion, memory_s(cost.weight_bytes)) +
         together(product, memory_s(cost.memory_bytes() - cost.weight_bytes));
}

// Not said: none is taken for granted.
bool has_tensor_cores(const ChipSpec& chip) {
  constexpr std::string_view prefix = "sm_";
  constexpr int first_with = 70;
  if (!chip.architecture.starts_with(prefix) || chip.n_sm <= 0) return false;
  return std::stoi(chip.architecture.substr(prefix.size())) >= first_with;
}

bool is_product(OpKind kind) { return kind == OpKind::linear || kind == OpKind::expert_linear; }

// A layer has exactly one op that ends its attention.
bool ends_attention(OpKind kind, const OpShape& shape) {
  return (kind == OpKind::attention || kind == OpKind::merge) && !shape.partial;
}

bool decodes(const OpShape& shape) { return shape.n_query_rows == shape.n_sequences; }

// A device without SMs has one unit of work at a time.
double decode_s(const DeviceSpec& device, const OpCost& cost, const OpShape& shape, MathType math) {
  const OpTiming& timing = device.timing.attention_decode;
  const auto units = static_cast<double>(shape.n_sequences * shape.n_kv_heads);
  const auto n_sm = static_cast<double>(std::max<int64_t>(device.chip.n_sm, 1));
  // The table's contexts start at 2; 128 tokens are what one block of threads reads unsplit.
  const double doublings = std::log2(1.0 + static_cast<double>(shape.longest_context) / 128.0);
  const double roofline = std::max(
      seconds(
          static_cast<double>(cost.flops), timing.compute_efficiency, device.peak_flops.at(math)),
      seconds(static_cast<double>(cost.memory_bytes()),
              timing.memory_efficiency,
              device.memory_bytes_per_s));
  return roofline + device.timing.decode_unit_s * units / n_sm +
         device.timing.decode_split_s * doublings;
}

// Products, cached keys and values, and queries and outputs add up: a block of queries computes on
// what it has just waited for. KV is read at decode's rate, so that a chunk and long decodes mix.
double prefill_s(const DeviceSpec& device, const OpCost& cost, MathType math) {
  const OpTiming& timing = device.timing.attention_prefill;
  return seconds(static_cast<double>(cost.flops),
                 timing.compute_efficiency,
                 device.peak_flops.at(math)) +
         seconds(static_cast<double>(cost.kv_bytes),
                 device.timing.attention_decode.memory_efficiency,
                 device.memory_bytes_per_s) +
         seconds(static_cast<double>(cost.activation_bytes),
                 timing.memory_efficiency,
                 device.memory_bytes_per_s);
}

bool narrow(MathType math) {
  return math == MathType::fp8 || math == MathType::int8 || math == MathType::fp4;
}

const OpTiming& timing_of(const DeviceTiming& timing,
                          OpKind kind,
                          const OpShape& shape,
                          MathType math) {
  if (is_product(kind)) return narrow(math) ? timing.linear_fp8 : timing.linear;
  if (kind == OpKind::attention)
    return decodes(shape) ? timing.attention_decode : timing.attention_prefill;
  return timing.elementwise;
}

double body_s(const DeviceSpec& device,
              OpKind kind,
              const OpCost& cost,
              const OpShape& shape,
              MathType math) {
  const OpTiming& timing = timing_of(device.timing, kind, shape, math);
  if (is_product(kind)) return linear_s(device, timing, kind, cost, shape, math);
  if (kind == OpKind::attention)
    return decodes(shape) ? decode_s(device, cost, shape, math) : prefill_s(device, cost, math);
  const double memory = seconds(static_cast<double>(cost.memory_bytes()),
                                timing.memory_efficiency,
                                device.memory_bytes_per_s);
  return std::max(memory, expansion_s(device, cost, math));  // of an embedding's rows
}

}  // namespace

double pass_op_seconds(const DeviceSpec& device,
                       OpKind kind,
                       const OpCost& cost,
                       const OpShape& shape,
                       MathType math) {
  const double overhead = ends_attention(kind, shape) ? device.timing.layer_overhead_s : 0.0;
  return body_s(device, kind, cost, shape, math) + overhead;
}

double op_seconds(const DeviceSpec& device,
                  OpKind kind,
                  const OpCost& cost,
                  const OpShape& shape,
                  MathType math) {
  return body_s(device, kind, cost, shape, math) +
         timing_of(device.timing, kind, shape, math).start_s;
}

DeviceTiming carried_timing(const DeviceSpec& from, const DeviceSpec& to) {
  DeviceTiming timing = from.timing;
  timing.source = "carried from " + from.name + ": " + from.timing.source +
                  "; carrying adds 8 to 16 % (docs/calibration.md)";
  // Latencies are cycles.
  const bool clocks_known = from.chip.boost_hz > 0.0 && to.chip.boost_hz > 0.0;
  const double scale = clocks_known ? from.chip.boost_hz / to.chip.boost_hz : 1.0;
  for (OpTiming* op : {&timing.linear,
                       &timing.linear_fp8,
                       &timing.attention_decode,
                       &timing.attention_prefill,
                       &timing.elementwise})
    op->start_s *= scale;
  timing.decode_unit_s *= scale;
  timing.decode_split_s *= scale;
  timing.layer_overhead_s *= scale;
  // Without tensor cores there are no tiles to fill: products by FLOPs alone.
  if (!has_tensor_cores(to.chip)) timing.tile_fill_k = 0.0;
  if (to.chip.n_sm <= 0) {  // not known: units as on the donor
    timing.decode_unit_s /= static_cast<double>(std::max<int64_t>(from.chip.n_sm, 1));
  }
  return timing;
}

}  // namespace testbed
