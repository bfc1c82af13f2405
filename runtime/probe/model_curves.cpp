#include "runtime/probe/model_curves.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "kernels/attention_cost.hpp"
#include "kernels/base/contiguous_sequence.hpp"
#include "kernels/cost.hpp"
#include "kernels/sim/op_time.hpp"
#include "parallel/comm/collective_times.hpp"

namespace testbed {
namespace {

constexpr double us = 1e6;  // per second

// The grid of benchmarks/measured/gemm.csv: every m with every (n, k).
constexpr std::array<int64_t, 14> gemm_rows{
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
struct Width {
  int64_t n;
  int64_t k;
};
constexpr std::array<Width, 20> gemm_widths{
    {{2048, 8192},  {4096, 4096},  {4096, 8192},  {4096, 16384}, {5120, 8192},
     {6144, 4096},  {7168, 8192},  {8192, 1024},  {8192, 2048},  {8192, 3584},
     {8192, 4096},  {8192, 7168},  {8192, 8192},  {8192, 12288}, {8192, 16384},
     {10240, 8192}, {12288, 8192}, {16384, 4096}, {16384, 8192}, {65536, 8192}}};

// The grid of attention.csv: every batch, context and pair of head counts, as far as the keys and
// values fit in the device. Its largest prefills stop at a number of tokens.
struct Heads {
  int64_t n_heads;
  int64_t n_kv_heads;
};
constexpr std::array<Heads, 6> heads{{{8, 1}, {8, 8}, {16, 2}, {32, 4}, {32, 8}, {64, 8}}};
constexpr std::array<int64_t, 6> batches{1, 4, 8, 16, 32, 64};
constexpr std::array<int64_t, 17> decode_contexts{
    2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
constexpr std::array<int64_t, 17> prefill_contexts{
    1, 16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384};
constexpr int64_t most_prefill_tokens = int64_t{128} << 10;
constexpr int64_t head_dim = 128;

// What 16-bit numbers are multiplied as: devices without bf16 do it in f16, those without either
// as they can.
MathType activation_math(const DeviceSpec& device) {
  for (const MathType type : {MathType::bf16, MathType::f16, MathType::f32})
    if (device.peak_flops.contains(type)) return type;
  return device.peak_flops.begin()->first;
}

DType dtype_of(MathType math) { return math == MathType::f32 ? DType::F32 : DType::BF16; }

double gemm_us(const DeviceSpec& device, int64_t m, const Width& width, MathType math) {
  const DType activation = dtype_of(math);
  OpCost cost = linear_cost(m, width.n, width.k, width.n, activation, activation);
  if (math == MathType::fp8) {
    cost.weight_bytes = width.n * width.k;
    // x is in fp8 as well; y is not.
    cost.activation_bytes = m * width.k + dtype_bytes(activation, m * width.n);
  }
  const OpShape shape{.m = m, .n = width.n, .k = width.k};
  return op_seconds(device, OpKind::linear, cost, shape, math) * us;
}

void add_gemm(const DeviceSpec& device, ProbeRecord& record) {
  std::vector<MathType> types{activation_math(device)};
  if (device.peak_flops.contains(MathType::fp8)) types.push_back(MathType::fp8);
  record.gemm.reserve(types.size() * gemm_rows.size() * gemm_widths.size());
  for (const MathType math : types) {
    for (const Width& width : gemm_widths) {
      for (const int64_t m : gemm_rows) {
        record.gemm.push_back({.m = m,
                               .n = width.n,
                               .k = width.k,
                               .dtype = std::string(math_name(math)),
                               .us = gemm_us(device, m, width, math)});
      }
    }
  }
}

double attention_us(const DeviceSpec& device, const AttentionPoint& p, MathType math) {
  const int64_t n_rows = p.phase == AttentionPhase::decode ? 1 : p.context;
  const ContiguousSequence sequence(n_rows, p.context);
  const std::vector<AttentionSequence> sequences(static_cast<size_t>(p.batch), sequence.view());
  const OpCost cost = attention_cost(
      sequences, 0, p.n_heads, {p.n_kv_heads, p.head_dim, p.head_dim, dtype_of(math)});
  const OpShape shape{.n_sequences = p.batch,
                      .n_query_rows = p.batch * n_rows,
                      .longest_context = p.context,
                      .n_kv_heads = p.n_kv_heads};
  return op_seconds(device, OpKind::attention, cost, shape, math) * us;
}

bool fits(const DeviceSpec& device, const AttentionPoint& p, MathType math) {
  const int64_t n_tokens = p.batch * p.context;
  if (p.phase == AttentionPhase::prefill && n_tokens > most_prefill_tokens) return false;
  return 2 * dtype_bytes(dtype_of(math), n_tokens * p.n_kv_heads * p.head_dim) <=
         device.memory_bytes;
}

void add_attention(const DeviceSpec& device, AttentionPhase phase, ProbeRecord& record) {
  const MathType math = activation_math(device);
  for (const Heads& of : heads) {
    for (const int64_t batch : batches) {
      for (const int64_t context :
           phase == AttentionPhase::decode ? decode_contexts : prefill_contexts) {
        AttentionPoint point{.phase = phase,
                             .batch = batch,
                             .context = context,
                             .n_heads = of.n_heads,
                             .n_kv_heads = of.n_kv_heads,
                             .head_dim = head_dim};
        if (!fits(device, point, math)) continue;
        point.us = attention_us(device, point, math);
        record.attention.push_back(point);
      }
    }
  }
}

// The first n devices of the first node; for messages the first two.
struct Curve {
  CommOp op;
  int n;
  int64_t n_bytes;
  CollectiveKey key;
};

std::vector<Curve> curve_points(const ClusterSpec& cluster, int64_t most_bytes) {
  constexpr CommOp ops[] = {CommOp::all_reduce,
                            CommOp::all_gather,
                            CommOp::reduce_scatter,
                            CommOp::all_to_all,
                            CommOp::send};
  constexpr int64_t least_bytes = 512;
  std::vector<Curve> points;
  for (int n = 2; n <= std::min(8, cluster.node.n_devices); n *= 2) {
    const GroupPlacement group = one_node(n);
    for (const CommOp op : ops) {
      for (int64_t n_bytes = least_bytes; n_bytes <= most_bytes; n_bytes *= 2) {
        if (algorithms_for(op, group, cluster, n_bytes).empty())
          continue;  // the machine was not seen to do it
        const GroupPlacement& members = op == CommOp::send ? one_node(2) : group;
        points.push_back({op, n, n_bytes, collective_key(op, n_bytes, members)});
      }
    }
  }
  return points;
}

void add_collectives(const ClusterSpec& cluster, int64_t most_bytes, ProbeRecord& record) {
  const std::vector<Curve> points = curve_points(cluster, most_bytes);
  if (points.empty()) return;
  std::set<CollectiveKey> keys;  // a message is the same in groups of any size
  for (const Curve& point : points) keys.insert(point.key);
  CollectiveTimes times(cluster);
  times.compute({keys.begin(), keys.end()});
  for (const Curve& point : points) {
    const std::vector<TimedAlgorithm>* algorithms = times.find(point.key);
    CHECK(algorithms != nullptr && !algorithms->empty());
    for (const TimedAlgorithm& timed : *algorithms) {
      record.collectives.push_back({.op = point.op,
                                    .n = point.n,
                                    .bytes = point.n_bytes,
                                    .algorithm = timed.algorithm,
                                    .us = timed.seconds * us,
                                    .best = timed.algorithm == algorithms->front().algorithm});
    }
  }
}

}  // namespace

ProbeRecord model_curves(const ClusterSpec& cluster, int64_t most_bytes) {
  const DeviceSpec& device = cluster.device;
  const MathType math = activation_math(device);
  ProbeRecord record{
      .device = "sim",
      .simulated = true,
      .description = cluster.name + ": " + cluster.description,
      .n_ranks = cluster.n_devices(),
      .memory_read_bytes_per_s = device.memory_bytes_per_s * device.timing.linear.memory_efficiency,
      .peak_flops = device.peak_flops.at(math),
      .kernel_overhead_us = device.timing.linear.start_s * us};
  const double node_reads = record.memory_read_bytes_per_s * cluster.node.n_devices;
  const double shared = cluster.node.shared_memory_bytes_per_s;
  record.memory_read_all_bytes_per_s = shared > 0.0 ? std::min(node_reads, shared) : node_reads;
  add_gemm(device, record);
  add_attention(device, AttentionPhase::decode, record);
  add_attention(device, AttentionPhase::prefill, record);
  add_collectives(cluster, most_bytes, record);
  return record;
}

}  // namespace testbed
