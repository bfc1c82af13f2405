#include <fmt/format.h>

#include <array>
#include <memory>

#include "benchmarks/cuda_operands.hpp"
#include "runtime/probe/synthetic.hpp"

namespace testbed::bench {
namespace {

using Weights = std::vector<WeightMatrix>;

// Fills a matrix with rows of a block, again and again.
template <typename Block>
void store_blocks(Device& device, const WeightMatrix& w, const Block& block, int64_t block_rows) {
  for (int64_t row = 0; row < w.n_rows(); row += block_rows) {
    device.store_rows(w, row, block.rows(0, std::min(block_rows, w.n_rows() - row)));
  }
}

// n_sets times n matrices.
std::shared_ptr<const Weights> make_weights(
    const RankBench& bench, int64_t n, int64_t rows, int64_t columns, const WeightFormat& format) {
  const int64_t set_bytes = n * format.n_bytes(rows, columns);
  const int64_t n_sets = std::max<int64_t>(2, bench.rotated_bytes / set_bytes);
  const int64_t block_rows = std::min<int64_t>(256, rows);
  const Tensor block =
      synthetic_tensor(format.is_quantised() ? DType::F32 : format.dtype, {block_rows, columns});
  QuantisedTensor quantised;
  if (format.is_quantised()) {
    quantised = QuantisedTensor(format, block_rows, columns);
    quantise(block, quantised);
  }
  auto weights = std::make_shared<Weights>();
  weights->reserve(static_cast<size_t>(n_sets * n));
  for (int64_t i = 0; i < n_sets * n; ++i) {
    const WeightMatrix& w =
        weights->emplace_back(bench.device.allocate_weight(rows, columns, format));
    if (format.is_quantised()) {
      store_blocks(bench.device, w, quantised.view(), block_rows);
    } else {
      store_blocks(bench.device, w, block.view(), block_rows);
    }
  }
  return weights;
}

struct Width {
  const char* name;
  int64_t n, k;
  bool is_head = false;  // one row a sequence, results in F32
};

std::vector<Width> widths_of(const RankShape& s) {
  std::vector<Width> widths{
      {"q, k, v", (s.n_heads + 2 * s.n_kv_heads) * s.head_dim, s.d_model},
      {"o", s.d_model, s.n_heads * s.head_dim},
  };
  if (s.n_experts == 0) {
    widths.push_back({"gate, up", 2 * s.d_ff, s.d_model});
    widths.push_back({"down", s.d_model, s.d_ff});
  } else {
    widths.push_back({"router", s.n_experts, s.d_model});
  }
  widths.push_back({"head", s.vocab, s.d_model, true});
  return widths;
}

BenchOp linear_op(const RankBench& bench,
                  const StepShape& step,
                  const Width& w,
                  const std::shared_ptr<const Weights>& weights) {
  const WeightFormat& format = weights->front().format();
  const int64_t m = w.is_head ? step.batch : step.rows();
  const Rotation x = activations(bench, {m, w.k});
  const Rotation y = w.is_head ? floats(bench, {m, w.n}) : activations(bench, {m, w.n});
  const std::string_view kind = format.is_quantised() ? format_name(format) : "linear";
  return {.name = fmt::format("{} {}", kind, w.name),
          .shape = fmt::format("{} x {} x {}", m, w.n, w.k),
          .bound = m > 1 && step.is_prefill() ? Bound::arithmetic : Bound::memory,
          .run = [&device = bench.device, weights, x, y](int64_t call) {
            const WeightMatrix& matrix = (*weights)[static_cast<size_t>(call) % weights->size()];
            device.linear(x.at(call), matrix, {}, y.at(call));
          }};
}

// Against the plain product of the same width, and the copy.
constexpr std::array quantised_formats{weight_formats::int8_row,
                                       weight_formats::int8_g32,
                                       weight_formats::int4_g32,
                                       weight_formats::int4_g128,
                                       weight_formats::fp8_block128};

// Rows of tokens dealt evenly over the experts; call by call to other ones where few have any.
std::vector<int64_t> first_rows(int64_t n_rows, int64_t n_experts, int64_t call) {
  std::vector<int64_t> first{0};
  for (int64_t e = 0; e < n_experts; ++e) {
    const int64_t turn = (e + call) % n_experts;
    const int64_t n = (turn + 1) * n_rows / n_experts - turn * n_rows / n_experts;
    first.push_back(first.back() + n);  // NOLINT(performance-inefficient-vector-operation)
  }
  return first;
}

BenchOp expert_op(const RankBench& bench,
                  const StepShape& step,
                  const Width& w,
                  const std::shared_ptr<const Weights>& weights) {
  const int64_t n_experts = bench.shape.n_experts;
  const int64_t n_rows = step.rows() * bench.shape.top_k;
  const Rotation x = activations(bench, {n_rows, w.k});
  const Rotation y = activations(bench, {n_rows, w.n});
  return {.name = fmt::format("experts {}", w.name),
          .shape = fmt::format("{} x {} x {}, {} experts", n_rows, w.n, w.k, n_experts),
          .bound = step.is_prefill() ? Bound::arithmetic : Bound::memory,
          .run = [&device = bench.device, weights, x, y, n_rows, n_experts](int64_t call) {
            const int64_t n_sets = static_cast<int64_t>(weights->size()) / n_experts;
            const std::span set(weights->data() + call % n_sets * n_experts,
                                static_cast<size_t>(n_experts));
            const std::vector<int64_t> first = first_rows(n_rows, n_experts, call / n_sets);
            device.expert_linear(x.at(call), {first}, set, {}, y.at(call), n_rows);
          }};
}

// A matrix per head, as MLA's absorbed products: head_dim to head_dim.
BenchOp head_op(const RankBench& bench,
                const StepShape& step,
                const std::shared_ptr<const Weights>& weights) {
  const RankShape& s = bench.shape;
  const Rotation x = activations(bench, {step.rows(), s.n_heads, s.head_dim});
  const Rotation y = activations(bench, {step.rows(), s.n_heads, s.head_dim});
  return {.name = "head_linear",
          .shape =
              fmt::format("{} x {} x {}, {} heads", step.rows(), s.head_dim, s.head_dim, s.n_heads),
          .bound = step.is_prefill() ? Bound::arithmetic : Bound::memory,
          .run = [&device = bench.device, weights, x, y, n = s.n_heads](int64_t call) {
            const int64_t n_sets = static_cast<int64_t>(weights->size()) / n;
            device.head_linear(
                x.at(call),
                std::span(weights->data() + call % n_sets * n, static_cast<size_t>(n)),
                y.at(call));
          }};
}

}  // namespace

RankShape rank_shape(const ModelConfig& model, int tp) {
  const int64_t d_ff = model.moe ? model.moe->d_ff : model.d_ff;
  return {.d_model = model.d_model,
          .n_heads = model.n_heads / tp,
          .n_kv_heads = std::max<int64_t>(1, model.n_kv_heads / tp),
          .head_dim = model.head_dim,
          .d_ff = d_ff / tp,
          .vocab = model.vocab_size / tp,
          .n_experts = model.moe ? model.moe->n_experts : 0,
          .top_k = model.moe ? model.moe->routing.top_k : 0};
}

std::vector<std::vector<BenchOp>> product_ops(const RankBench& bench,
                                              const std::vector<StepShape>& steps) {
  const RankShape& s = bench.shape;
  std::vector<std::vector<BenchOp>> ops(steps.size());
  const auto for_steps = [&](const auto& make, const auto&... arguments) {
    for (size_t i = 0; i < steps.size(); ++i) {
      ops[i].push_back(make(bench, steps[i], arguments...));
    }
  };
  const WeightFormat plain = bench.device.compute_dtype();
  for (const Width& w : widths_of(s)) {
    for_steps(linear_op, w, make_weights(bench, 1, w.n, w.k, plain));
  }
  const Width wide = widths_of(s)[s.n_experts == 0 ? 2 : 1];  // gate and up, or o
  for (const WeightFormat& format : quantised_formats) {
    for_steps(linear_op, wide, make_weights(bench, 1, wide.n, wide.k, format));
  }
  for_steps(head_op, make_weights(bench, s.n_heads, s.head_dim, s.head_dim, plain));
  if (s.n_experts == 0) return ops;
  for (const Width& w :
       {Width{"gate, up", 2 * s.d_ff, s.d_model}, Width{"down", s.d_model, s.d_ff}}) {
    for_steps(expert_op, w, make_weights(bench, s.n_experts, w.n, w.k, plain));
  }
  return ops;
}

}  // namespace testbed::bench
