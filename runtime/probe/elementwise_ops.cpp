// What is neither a product nor attention in a layer: norms, rope, cache writes, the gated
// activation; at decode and prefill rows.
#include <cmath>
#include <memory>

#include "kernels/attention_cost.hpp"
#include "runtime/probe/probe_op.hpp"
#include "runtime/probe/synthetic.hpp"

namespace testbed {
namespace {

// llama3-8b.
constexpr int64_t d_model = 4096;
constexpr int64_t d_ff = 14336;
constexpr int64_t n_heads = 32;
constexpr int64_t n_kv_heads = 8;
constexpr int64_t head_dim = 128;
constexpr int64_t block_size = 16;
constexpr int64_t most_rows = 512;
constexpr int64_t rows[] = {1, 8, most_rows};

struct Bench {
  Tensor residual, x, normed, norm_weight, gate_up, act, k_cache, v_cache;
  std::vector<double> inv_freq;
  std::vector<int64_t> positions;
  std::vector<int64_t> slots;
  KvView kv;

  explicit Bench(Device& device) : Bench(device, device.compute_dtype()) {}
  Bench(Device& device, DType dtype)
      : residual(synthetic_tensor(device, dtype, {most_rows, d_model})),
        x(synthetic_tensor(device, dtype, {most_rows, d_model})),
        normed(synthetic_tensor(device, dtype, {most_rows, d_model})),
        norm_weight(synthetic_tensor(device, DType::F32, {d_model})),
        gate_up(synthetic_tensor(device, dtype, {most_rows, 2 * d_ff})),
        act(device.allocate(dtype, {most_rows, d_ff})),
        k_cache(device.allocate(dtype, {most_rows / block_size, n_kv_heads, block_size, head_dim})),
        v_cache(device.allocate(dtype, k_cache.shape())) {
    for (int64_t i = 0; i < head_dim / 2; ++i)
      inv_freq.push_back(
          std::pow(500000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
    for (int64_t i = 0; i < most_rows; ++i) positions.push_back(i);
    slots = positions;
    kv = {.k = k_cache.data(),
          .v = v_cache.data(),
          .dtype = dtype,
          .n_blocks = most_rows / block_size,
          .block_size = block_size,
          .n_kv_heads = n_kv_heads,
          .head_dim = head_dim,
          .v_dim = head_dim};
  }

  // [m, heads, head_dim] in x's memory.
  TensorView heads(TensorView of, int64_t m, int64_t n) const {
    return {of.data(), of.dtype(), {m, n, head_dim}};
  }
};

using Run = std::function<void(Device&, Bench&, int64_t m)>;

void run_norm(Device& device, Bench& b, int64_t m) {
  device.add_rms_norm(b.residual.view().rows(0, m),
                      b.x.view().rows(0, m),
                      b.norm_weight,
                      1e-5F,
                      b.normed.view().rows(0, m));
}

void run_rope(Device& device, Bench& b, int64_t m, int64_t heads) {
  device.rope(b.heads(b.x, m, heads),
              {b.positions.data(), static_cast<size_t>(m)},
              {.inv_freq = b.inv_freq});
}

void run_write(Device& device, Bench& b, int64_t m) {
  device.write_kv(b.heads(b.x, m, n_kv_heads),
                  b.heads(b.normed, m, n_kv_heads),
                  b.kv,
                  {b.slots.data(), static_cast<size_t>(m)});
}

void run_swiglu(Device& device, Bench& b, int64_t m) {
  device.gated_activation(Activation::silu, b.gate_up.view().rows(0, m), b.act.view().rows(0, m));
}

}  // namespace

std::vector<ProbeOp> elementwise_ops(Device& device) {
  const DType dtype = device.compute_dtype();
  const auto bench = std::make_shared<Bench>(device);
  std::vector<ProbeOp> ops;
  const auto add = [&](OpKind kind, int64_t m, int64_t width, const OpCost& cost, Run run) {
    ops.push_back({.kind = kind,
                   .cost = cost,
                   .point = ElementwisePoint{.op = kind, .rows = m, .width = width},
                   .run = [&device, bench, m, run = std::move(run)](int64_t /*call*/) {
                     run(device, *bench, m);
                   }});
  };
  for (const int64_t m : rows) {
    add(OpKind::norm, m, d_model, norm_cost(m, d_model, true, dtype), run_norm);
    for (const int64_t heads : {n_heads, n_kv_heads}) {
      add(OpKind::rope,
          m,
          heads * head_dim,
          rope_cost(m * heads * head_dim, dtype),
          [heads](Device& d, Bench& b, int64_t n) { run_rope(d, b, n, heads); });
    }
    add(OpKind::kv_write,
        m,
        n_kv_heads * head_dim,
        kv_write_cost(m, {n_kv_heads, head_dim, head_dim, dtype}),
        run_write);
    add(OpKind::activation, m, d_ff, activation_cost(m, d_ff, dtype), run_swiglu);
  }
  return ops;
}

}  // namespace testbed
