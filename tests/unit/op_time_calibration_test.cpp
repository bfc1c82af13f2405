// The simulator's op times against published measurements (benchmarks/measured/): the bounds of the
// calibration, on the shapes that the fit saw and on those that it did not.
//
// A shape's time is the mean over its sources; two sources of one GPU differ by 5 % (GEMM) to 23 %
// (attention). A row that would need more than the datasheet's bandwidth is dropped: its data did
// not come from memory. benchmarks/calibrate_device.py fits by the same rules.
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <tuple>

#include "kernels/attention_cost.hpp"
#include "kernels/base/contiguous_sequence.hpp"
#include "kernels/cost.hpp"
#include "kernels/sim/op_time.hpp"
#include "runtime/config/device_config.hpp"
#include "tests/unit/measured_tables.hpp"

namespace testbed {
namespace {

struct Op {
  OpKind kind = OpKind::linear;
  OpCost cost;
  OpShape shape;
  MathType math = MathType::bf16;
};
enum class Rows : uint8_t { possible, all };
enum class Shapes : uint8_t { fitted, held_out, all };

Op gemm(const MeasuredRow& row) {
  const int64_t m = row.integer("m");
  const int64_t n = row.integer("n");
  const int64_t k = row.integer("k");
  const bool fp8 = row.text("dtype") == "fp8";
  OpCost cost = linear_cost(m, n, k, n, DType::BF16, DType::BF16);
  if (fp8) {  // the table's GEMM reads both operands in fp8 and writes 16 bits
    cost.weight_bytes = n * k;
    cost.activation_bytes = m * k + 2 * m * n;
  }
  return {OpKind::linear, cost, {.m = m, .n = n, .k = k}, fp8 ? MathType::fp8 : MathType::bf16};
}

Op attention(const MeasuredRow& row) {
  const bool decode = row.text("phase") == "decode";
  const int64_t batch = row.integer("batch");
  const int64_t context = row.integer("context");
  const int64_t n_rows = decode ? 1 : context;
  const ContiguousSequence sequence(n_rows, context);
  const std::vector<AttentionSequence> sequences(static_cast<size_t>(batch), sequence.view());
  const int64_t n_kv_heads = row.integer("n_kv_heads");
  const int64_t head_dim = row.integer("head_dim");
  return {OpKind::attention,
          attention_cost(sequences, 0, row.integer("n_heads"), {n_kv_heads, head_dim, head_dim}),
          {.n_sequences = batch,
           .n_query_rows = batch * n_rows,
           .longest_context = context,
           .n_kv_heads = n_kv_heads},
          MathType::bf16};
}

// The table's rows of one GPU, one entry per shape: half of the groups (weight shapes, head counts)
// were fitted.
class Table {
 public:
  using Group = std::pair<int64_t, int64_t>;

  void add(const MeasuredRow& row, const Op& op, Group group, std::vector<int64_t> shape) {
    groups_.insert(group);
    Entry& entry = entries_[std::move(shape)];
    entry.op = op;
    entry.group = group;
    entry.seconds.push_back(row.number("latency_us") * 1e-6);
  }

  ErrorSummary errors(const DeviceSpec& device, Shapes shapes, Rows rows = Rows::possible) const {
    std::vector<double> errors;
    for (const auto& [shape, entry] : entries_) {
      // Every second group, in rising order, was fitted.
      const bool fitted = std::distance(groups_.begin(), groups_.find(entry.group)) % 2 == 0;
      const double measured = mean(device, entry, rows);
      if (shapes != Shapes::all && fitted != (shapes == Shapes::fitted)) continue;
      if (measured == 0.0) continue;
      const Op& op = entry.op;
      errors.push_back(op_seconds(device, op.kind, op.cost, op.shape, op.math) / measured - 1);
    }
    return summarise(errors);
  }

 private:
  struct Entry {
    Op op;
    Group group;
    std::vector<double> seconds;
  };

  static double mean(const DeviceSpec& device, const Entry& entry, Rows rows) {
    const OpCost& cost = entry.op.cost;
    const auto n_bytes =
        static_cast<double>(cost.weight_bytes + cost.kv_bytes + cost.activation_bytes);
    const OpShape& shape = entry.op.shape;
    const bool bounded = rows == Rows::possible && shape.n_query_rows == shape.n_sequences;
    double sum = 0.0;
    int64_t n = 0;
    for (const double seconds : entry.seconds) {
      if (bounded && n_bytes > device.memory_bytes_per_s * seconds) continue;
      sum += seconds;
      ++n;
    }
    return n > 0 ? sum / static_cast<double>(n) : 0.0;
  }

  std::map<std::vector<int64_t>, Entry> entries_;
  std::set<Group> groups_;
};

Table gemm_table(const std::string& gpu, const std::string& dtype) {
  Table table;
  for (const MeasuredRow& row : read_measured("gemm.csv"))
    if (row.text("gpu") == gpu && row.text("dtype") == dtype)
      table.add(row,
                gemm(row),
                {row.integer("n"), row.integer("k")},
                {row.integer("m"), row.integer("n"), row.integer("k")});
  return table;
}

Table attention_table(const std::string& gpu, const std::string& phase) {
  Table table;
  for (const MeasuredRow& row : read_measured("attention.csv")) {
    // A prefill of one token is a decode.
    if (row.text("gpu") != gpu || row.text("phase") != phase ||
        (phase == "prefill" && row.integer("context") == 1))
      continue;
    const Table::Group heads{row.integer("n_heads"), row.integer("n_kv_heads")};
    table.add(row,
              attention(row),
              heads,
              {row.integer("batch"), row.integer("context"), heads.first, heads.second});
  }
  return table;
}

void expect_below(const std::string& name,
                  const ErrorSummary& error,
                  int64_t n_least,
                  double median,
                  double p90) {
  std::printf("%s: %lld shapes, median %.1f %%, p90 %.1f %%, bias %+.1f %%\n",
              name.c_str(),
              static_cast<long long>(error.n),
              error.median,
              error.p90,
              error.bias);
  EXPECT_GE(error.n, n_least) << name;
  EXPECT_LE(error.median, median) << name;
  EXPECT_LE(error.p90, p90) << name;
}

void expect_calibrated(const std::string& name,
                       const Table& table,
                       const DeviceSpec& device,
                       double median,
                       double p90) {
  expect_below(name + ", fitted", table.errors(device, Shapes::fitted), 100, median, p90);
  expect_below(name + ", held out", table.errors(device, Shapes::held_out), 100, median, p90);
  expect_below(name + ", all", table.errors(device, Shapes::all), 200, median, p90);
}

constexpr double no_bound = 1e9;

TEST(OpTimeCalibration, gemm_of_h100_and_a100) {
  const DeviceSpec h100 = read_device("h100-sxm");
  const DeviceSpec a100 = read_device("a100-80");
  expect_calibrated("h100 bf16", gemm_table("h100_sxm", "bfloat16"), h100, 5, 11);
  expect_calibrated("a100 bf16", gemm_table("a100_sxm", "bfloat16"), a100, 5, 11);
  expect_calibrated("h100 fp8", gemm_table("h100_sxm", "fp8"), h100, 8, no_bound);
}

TEST(OpTimeCalibration, gemm_of_l40s) {
  const DeviceSpec l40s = read_device("l40s");
  expect_calibrated("l40s bf16", gemm_table("l40s", "bfloat16"), l40s, 8, no_bound);
  expect_calibrated("l40s fp8", gemm_table("l40s", "fp8"), l40s, 8, no_bound);
}

TEST(OpTimeCalibration, attention_of_h100_and_a100) {
  for (const auto& [gpu, preset] :
       {std::pair{"h100_sxm", "h100-sxm"}, std::pair{"a100_sxm", "a100-80"}}) {
    const DeviceSpec device = read_device(preset);
    const std::string name = preset;
    const Table decode = attention_table(gpu, "decode");
    expect_calibrated(name + " decode", decode, device, 10, no_bound);
    expect_calibrated(name + " prefill", attention_table(gpu, "prefill"), device, 12, no_bound);
    const ErrorSummary error = decode.errors(device, Shapes::all, Rows::all);
    expect_below(name + " decode, impossible rows too", error, 200, 10, no_bound);
  }
}

// What the carry rule costs: a GPU that has tables, predicted from the calibration of one of
// another generation. Within a generation it should cost less.
TEST(OpTimeCalibration, carried_to_another_generation) {
  const auto expect_carried = [](const char* name,
                                 const Table& table,
                                 const DeviceSpec& from,
                                 DeviceSpec to,
                                 double median) {
    to.timing = carried_timing(from, to);
    expect_below(name, table.errors(to, Shapes::all), 200, median, no_bound);
  };
  const DeviceSpec h100 = read_device("h100-sxm");
  const DeviceSpec a100 = read_device("a100-80");
  const DeviceSpec l40s = read_device("l40s");
  const char* a = "a100_sxm";
  const char* h = "h100_sxm";
  expect_carried("a100 from h100, bf16", gemm_table(a, "bfloat16"), h100, a100, 12);
  expect_carried("h100 from a100, bf16", gemm_table(h, "bfloat16"), a100, h100, 13);
  expect_carried("l40s from a100, bf16", gemm_table("l40s", "bfloat16"), a100, l40s, 12);
  expect_carried("l40s from h100, fp8", gemm_table("l40s", "fp8"), h100, l40s, 16);
  expect_carried("a100 from h100, decode", attention_table(a, "decode"), h100, a100, 13);
  expect_carried("h100 from a100, decode", attention_table(h, "decode"), a100, h100, 13);
  expect_carried("a100 from h100, prefill", attention_table(a, "prefill"), h100, a100, 18);
  expect_carried("h100 from a100, prefill", attention_table(h, "prefill"), a100, h100, 18);
}

}  // namespace
}  // namespace testbed
