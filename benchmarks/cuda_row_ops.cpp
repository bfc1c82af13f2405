#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "benchmarks/cuda_operands.hpp"
#include "kernels/cuda/rows.hpp"

namespace testbed::bench {
namespace {

constexpr float eps = 1e-5F;

struct Rows {
  const RankBench& bench;
  StepShape step;
  int64_t m = step.rows();
  int64_t d = bench.shape.d_model;
  std::string model_width = fmt::format("{} x {}", m, d);
  std::string logits_width = fmt::format("{} x {}", step.batch, bench.shape.vocab);
};

BenchOp embed_op(const Rows& r) {
  CudaDevice& device = r.bench.device;
  const WeightMatrix table =
      device.allocate_weight(r.bench.shape.vocab, r.d, device.compute_dtype());
  const Rotation out = activations(r.bench, {r.m, r.d});
  const auto ids = [m = r.m, n = r.bench.shape.vocab](int64_t call) {
    std::vector<int32_t> of_rows(static_cast<size_t>(m));
    for (int64_t i = 0; i < m; ++i) {
      of_rows[static_cast<size_t>(i)] = static_cast<int32_t>((call * m + i) * 7919 % n);
    }
    return of_rows;
  };
  return {.name = "embed", .shape = r.model_width, .run = [=, &device](int64_t call) {
            device.embed(ids(call), table, 0, out.at(call));
          }};
}

std::vector<BenchOp> norm_ops(const Rows& r) {
  CudaDevice& device = r.bench.device;
  const RankShape& s = r.bench.shape;
  const Rotation residual = activations(r.bench, {r.m, r.d});
  const Rotation x = activations(r.bench, {r.m, r.d});
  const Rotation out = activations(r.bench, {r.m, r.d});
  const Rotation heads = activations(r.bench, {r.m, s.n_heads, s.head_dim});
  const Rotation weight = floats(r.bench, {std::max(r.d, s.head_dim)});
  const auto norm_weight = [weight](int64_t n) {
    return TensorView(weight.at(0).data(), DType::F32, {n});
  };
  return {
      {"rms_norm",
       r.model_width,
       Bound::memory,
       [=, &device, d = r.d](int64_t call) {
         device.rms_norm(x.at(call), norm_weight(d), eps, out.at(call));
       }},
      {"add_rms_norm",
       r.model_width,
       Bound::memory,
       [=, &device, d = r.d](int64_t call) {
         device.add_rms_norm(residual.at(call), x.at(call), norm_weight(d), eps, out.at(call));
       }},
      {"head_norm",
       fmt::format("{} x {} heads", r.m, s.n_heads),
       Bound::memory,
       [=, &device, d = s.head_dim](int64_t call) {
         device.head_norm(heads.at(call), norm_weight(d), eps);
       }},
      {"add",
       r.model_width,
       Bound::memory,
       [=, &device](int64_t call) { device.add(residual.at(call), x.at(call)); }},
      {"scale",
       r.model_width,
       Bound::memory,
       [=, &device](int64_t call) { device.scale(x.at(call), 1.0F); }},
      {"copy_columns",
       fmt::format("{} x {}", r.m, r.d / 2),
       Bound::memory,
       [=, &device, n = r.d / 2](int64_t call) {
         device.copy_columns(x.at(call), n, n, out.at(call), 0);
       }},
  };
}

BenchOp rope_op(const Rows& r) {
  CudaDevice& device = r.bench.device;
  const RankShape& s = r.bench.shape;
  const Rotation x = activations(r.bench, {r.m, s.n_heads, s.head_dim});
  std::vector<double> inverse;
  for (int64_t i = 0; i < s.head_dim / 2; ++i) {
    inverse.push_back(std::pow(5e5, -2.0 * double(i) / double(s.head_dim)));  // NOLINT
  }
  std::vector<int64_t> positions(static_cast<size_t>(r.m));
  std::iota(positions.begin(), positions.end(), 0);
  return {.name = "rope",
          .shape = fmt::format("{} x {} heads", r.m, s.n_heads),
          .run = [=, &device](int64_t call) {
            device.rope(x.at(call), positions, {.inv_freq = inverse});
          }};
}

BenchOp activation_op(const Rows& r) {
  CudaDevice& device = r.bench.device;
  const RankShape& s = r.bench.shape;
  const int64_t m = r.m * std::max<int64_t>(1, s.top_k);
  const Rotation gate_up = activations(r.bench, {m, 2 * s.d_ff});
  const Rotation out = activations(r.bench, {m, s.d_ff});
  return {.name = "swiglu",
          .shape = fmt::format("{} x {}", m, s.d_ff),
          .run = [=, &device](int64_t call) {
            device.gated_activation(Activation::silu, gate_up.at(call), out.at(call));
          }};
}

// The device's row_max waits for its results; here it is the kernels alone.
std::vector<BenchOp> logits_ops(const Rows& r) {
  CudaDevice& device = r.bench.device;
  const int64_t n = r.step.batch;
  const Rotation logits = floats(r.bench, {n, r.bench.shape.vocab});
  constexpr auto words = static_cast<int64_t>(sizeof(RowMax) / sizeof(int32_t));
  const auto results = std::make_shared<Tensor>(
      device.allocate(DType::I32, {n * (1 + cuda::row_max_parts(r.bench.shape.vocab)) * words}));
  return {{.name = "row_max",
           .shape = r.logits_width,
           .run =
               [=, &device](int64_t call) {
                 cuda::row_max(
                     device.queue(), logits.at(call), static_cast<RowMax*>(results->data()));
               },
           .counted =
               [=, &device] {
                 std::vector<RowMax> out(static_cast<size_t>(n));
                 device.row_max(logits.at(0), out);
               }},
          {.name = "softcap", .shape = r.logits_width, .run = [=, &device](int64_t call) {
             device.softcap(logits.at(call), 30.0F);
           }}};
}

BenchOp route_op(const Rows& r) {
  CudaDevice& device = r.bench.device;
  const RankShape& s = r.bench.shape;
  const Rotation logits = floats(r.bench, {r.m, s.n_experts});
  const RoutingParams params{
      .rule = r.bench.model.moe->routing, .selection_bias = {}, .expert_scale = {}, .row_keys = {}};
  const auto ids = std::make_shared<Tensor>(device.allocate(DType::I32, {r.m, s.top_k}));
  const auto weights = std::make_shared<Tensor>(device.allocate(DType::F32, {r.m, s.top_k}));
  return {.name = "route",
          .shape = fmt::format("{} x {} experts", r.m, s.n_experts),
          .run =
              [=, &device](int64_t call) {
                cuda::route(device.queue(), logits.at(call), params, *ids, *weights);
              },
          .counted =
              [=, &device] {
                const Tensor host_ids(DType::I32, ids->shape());
                const Tensor host_weights(DType::F32, weights->shape());
                device.route(logits.at(0), params, host_ids, host_weights);
              }};
}

}  // namespace

std::vector<BenchOp> row_ops(const RankBench& bench, const StepShape& step) {
  const Rows rows{bench, step};
  std::vector<BenchOp> ops = norm_ops(rows);
  ops.push_back(embed_op(rows));
  ops.push_back(rope_op(rows));
  ops.push_back(activation_op(rows));
  for (BenchOp& op : logits_ops(rows)) ops.push_back(std::move(op));
  return ops;
}

std::vector<BenchOp> routing_ops(const RankBench& bench, const StepShape& step) {
  if (bench.shape.n_experts == 0) return {};
  const Rows r{bench, step};
  CudaDevice& device = bench.device;
  const int64_t k = bench.shape.top_k;
  const Rotation tokens = activations(bench, {r.m, r.d});
  const Rotation pairs = activations(bench, {r.m * k, r.d});
  // Of each token its k pairs, as if sorted by expert: far from one another.
  std::vector<int64_t> first(static_cast<size_t>(r.m) + 1);
  std::vector<int64_t> of_pairs(static_cast<size_t>(r.m * k));
  std::vector<int64_t> of_tokens(of_pairs.size());
  for (int64_t token = 0; token < r.m; ++token) {
    first[static_cast<size_t>(token) + 1] = (token + 1) * k;
    for (int64_t i = 0; i < k; ++i) {
      of_pairs[static_cast<size_t>(token * k + i)] = i * r.m + token;
      of_tokens[static_cast<size_t>(i * r.m + token)] = token;
    }
  }
  const std::vector<float> weights(of_pairs.size(), 1.0F / static_cast<float>(k));
  const std::string shape = fmt::format("{} x {} of {}", r.m, k, r.d);
  return {route_op(r),
          {.name = "gather_rows",
           .shape = shape,
           .run =
               [=, &device](int64_t call) {
                 device.gather_rows(tokens.at(call), of_tokens, pairs.at(call));
               }},
          {.name = "combine_rows", .shape = shape, .run = [=, &device](int64_t call) {
             device.combine_rows(pairs.at(call), {first, of_pairs, weights}, tokens.at(call));
           }}};
}

}  // namespace testbed::bench
