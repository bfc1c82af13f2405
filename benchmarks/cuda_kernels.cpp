// Every op of the CUDA device at the shapes of one rank, beside what the same device does in the
// same minute: a copy loop for bandwidth, and for products and prefill attention a large matrix
// product. The three alternate; times are medians by the device's own clock, of ops as nodes of a
// graph. Bytes and FLOPs are those that a run counts (OpCost).
//   bench_cuda_kernels [--model M]... [--tp N,N] [--tiny]
// M: a preset or folder (llama3-8b, llama3-70b, mixtral-8x7b). Degrees that a model cannot have are
// left out. --tiny: small steps and operands, for the emulation.
// Operands of up to a few MB stay in L2 from call to call, as in a step: the ratio to the copy from
// memory can then be above 1.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "benchmarks/cuda_ops.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/probes/cuda/bandwidth.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/split.hpp"
#include "runtime/probe/measure_ops.hpp"
#include "runtime/probe/synthetic.hpp"

namespace testbed::bench {
namespace {

struct Options {
  std::vector<std::string> models;
  std::vector<int> degrees{1, 2, 4, 8};
  bool is_tiny = false;
};

struct Sizes {
  std::vector<int64_t> batches{1, 8, 64};
  std::vector<int64_t> contexts{1024, 8192};
  int64_t prompt = 2048;
  int64_t rotated_bytes = int64_t{256} << 20;
  int64_t product_side = 8192;
};
constexpr int64_t tiny_bytes = int64_t{1} << 18;

std::vector<int> parse_degrees(const std::string& text) {
  std::vector<int> degrees;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    degrees.push_back(std::atoi(text.substr(at, comma - at).c_str()));  // NOLINT
    if (degrees.back() < 1) throw ConfigError("--tp " + text + ": degrees are numbers from 1 on");
    at = comma + 1;
  }
  return degrees;
}

Options parse(int argc, char** argv) {
  Options options;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool has_value = i + 1 < arguments.size();
    if (arguments[i] == "--tiny") {
      options.is_tiny = true;
    } else if (arguments[i] == "--model" && has_value) {
      options.models.push_back(arguments[++i]);  // NOLINT(performance-inefficient-vector-operation)
    } else if (arguments[i] == "--tp" && has_value) {
      options.degrees = parse_degrees(arguments[++i]);
    } else {
      throw ConfigError("usage: bench_cuda_kernels [--model M]... [--tp N,N] [--tiny]");
    }
  }
  if (options.models.empty()) options.models = {"llama3-8b", "llama3-70b", "mixtral-8x7b"};
  return options;
}

// The op's cost, and its first run, which lets libraries set themselves up.
class CostOf final : public CostSink {
 public:
  CostOf(CudaDevice& device, const BenchOp& op) {
    device.set_sink(this);
    op.counted ? op.counted() : op.run(0);
    device.set_sink(nullptr);
    if (op.counted) op.run(0);
    device.synchronize();
  }
  void on_op(const OpRecord& record) override {
    kind_ = record.kind;
    cost_ += record.cost;
  }
  OpKind kind() const { return kind_; }
  const OpCost& cost() const { return cost_; }

 private:
  OpKind kind_ = OpKind::copy;
  OpCost cost_;
};

// What ops are held against.
class References {
 public:
  References(CudaDevice& device, const Sizes& sizes)
      : from_(device.allocate(DType::I32, {sizes.rotated_bytes / 4})),
        to_(device.allocate(DType::I32, from_.shape())),
        side_(sizes.product_side),
        weight_(device.allocate_weight(side_, side_, device.compute_dtype())),
        x_(device.allocate(device.compute_dtype(), {side_, side_})),
        y_(device.allocate(device.compute_dtype(), {side_, side_})) {
    device.fill_synthetic(x_);
    const Tensor block = synthetic_tensor(device.compute_dtype(), {32, side_});
    for (int64_t row = 0; row < side_; row += 32) device.store_rows(weight_, row, block);
    copy_.run = [this, &device](int64_t) { cuda::copy_memory(device.queue(), from_, to_, 1); };
    product_.run = [this, &device](int64_t) { device.linear(x_, weight_, {}, y_); };
    copy_.run(0);
    product_.run(0);
  }
  const ProbeOp& copy() const { return copy_; }
  const ProbeOp& product() const { return product_; }
  double copied_bytes() const { return 2.0 * static_cast<double>(from_.n_bytes()); }
  double product_flops() const {
    const auto n = static_cast<double>(side_);
    return 2.0 * n * n * n;
  }

 private:
  Tensor from_, to_;
  int64_t side_;
  WeightMatrix weight_;
  Tensor x_, y_;
  ProbeOp copy_, product_;
};

void print_header(const ModelConfig& model, int tp, const StepShape& step) {
  if (step.is_prefill()) {
    fmt::print("\n{}, tp {}: prefill of {} tokens\n", model.name, tp, step.n_rows);
  } else {
    fmt::print(
        "\n{}, tp {}: decode, batch {}, context {}\n", model.name, tp, step.batch, step.context);
  }
  fmt::print("  {:<22} {:<34} {:>9} {:>9} {:>8} {:>9} {:>8}\n",
             "op",
             "shape",
             "us",
             "GB/s",
             "of copy",
             "TFLOP/s",
             "of GEMM");
}

void measure(CudaDevice& device, const References& references, const BenchOp& op) {
  const CostOf counted(device, op);
  const auto n_bytes = static_cast<double>(counted.cost().memory_bytes());
  const auto flops = static_cast<double>(counted.cost().flops);
  std::vector<ProbeOp> turns(1);
  turns[0].kind = counted.kind();
  turns[0].run = op.run;
  turns.push_back(references.copy());
  if (op.bound == Bound::arithmetic) turns.push_back(references.product());
  const std::vector<MeasuredOp> measured = measure_ops(device, turns);
  device.queue().forget_graphs();
  const double seconds = measured[0].seconds;
  const double copy = references.copied_bytes() / measured[1].seconds;
  fmt::print("  {:<22} {:<34} {:>9.2f} {:>9.1f} {:>8.3f}",
             op.name,
             op.shape,
             seconds * 1e6,
             n_bytes / seconds / 1e9,
             n_bytes / seconds / copy);
  if (op.bound == Bound::arithmetic) {
    const double product = references.product_flops() / measured[2].seconds;
    fmt::print(" {:>9.1f} {:>8.3f}", flops / seconds / 1e12, flops / seconds / product);
  }
  fmt::print("\n");
  std::fflush(stdout);
}

std::vector<StepShape> steps_of(const Sizes& sizes) {
  std::vector<StepShape> steps;
  for (const int64_t batch : sizes.batches) {
    for (const int64_t context : sizes.contexts) {
      steps.push_back({.batch = batch, .n_rows = 1, .context = context});  // NOLINT
    }
  }
  steps.push_back({.batch = 1, .n_rows = sizes.prompt, .context = sizes.prompt});
  return steps;
}

void bench_rank(const RankBench& bench, int tp, const Sizes& sizes, const References& references) {
  const std::vector<StepShape> steps = steps_of(sizes);
  const std::vector<std::vector<BenchOp>> products = product_ops(bench, steps);
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepShape& step = steps[i];
    print_header(bench.model, tp, step);
    const auto measure_all = [&](const std::vector<BenchOp>& ops) {
      for (const BenchOp& op : ops) measure(bench.device, references, op);
    };
    measure_all(cache_ops(bench, step));
    // The rest does not depend on the context.
    if (i > 0 && step.batch == steps[i - 1].batch && !step.is_prefill()) continue;
    measure_all(products[i]);
    measure_all(row_ops(bench, step));
    measure_all(routing_ops(bench, step));
  }
}

void bench_all(const Options& options) {
  Sizes sizes;
  if (options.is_tiny) {
    sizes = {.batches = {1, 2},
             .contexts = {24},
             .prompt = 16,
             .rotated_bytes = tiny_bytes,
             .product_side = 64};
  }
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  CudaDevice device(std::make_shared<CudaStreams>(), DType::BF16, properties.name);
  if (!options.is_tiny)
    sizes.rotated_bytes = std::max(sizes.rotated_bytes, cuda::read_buffer_bytes());
  const References references(device, sizes);
  const std::vector<MeasuredOp> alone =
      measure_ops(device, {references.copy(), references.product()});
  fmt::print("{}: copy of {} MB {:.1f} GB/s; bf16 product of {} cubed {:.1f} TFLOP/s\n",
             device.description(),
             sizes.rotated_bytes / 1000000,
             references.copied_bytes() / alone[0].seconds / 1e9,
             sizes.product_side,
             references.product_flops() / alone[1].seconds / 1e12);
  for (const std::string& name : options.models) {
    const ModelConfig model = read_model_config(locate_model(name));
    const std::vector<int> legal = legal_tp(model, 1);
    for (const int tp : options.degrees) {
      if (std::find(legal.begin(), legal.end(), tp) == legal.end()) continue;
      bench_rank(
          {device, model, rank_shape(model, tp), sizes.rotated_bytes}, tp, sizes, references);
    }
  }
}

}  // namespace
}  // namespace testbed::bench

int main(int argc, char** argv) {
  try {
    testbed::bench::bench_all(testbed::bench::parse(argc, argv));
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_cuda_kernels: {}\n", e.what());
    return 2;
  }
}
