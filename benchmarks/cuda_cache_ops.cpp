#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <numeric>

#include "benchmarks/cuda_operands.hpp"
#include "kernels/base/contiguous_sequence.hpp"

namespace testbed::bench {
namespace {

constexpr int64_t block_size = 16;  // tokens, as the engine's cache has it

// A paged cache with room for several disjoint batches.
struct Cache {
  // One batch: its sequences in blocks of their own.
  struct Batch {
    std::vector<ContiguousSequence> sequences;
    std::vector<AttentionSequence> views;
    std::vector<int32_t> blocks;
  };
  Tensor k, v;
  KvView kv;
  std::vector<Batch> batches;
  std::vector<int32_t> head_to_kv;

  Cache(const RankBench& bench, const StepShape& step) {
    const RankShape& s = bench.shape;
    const DType dtype = bench.device.compute_dtype();
    const int64_t per_sequence = (step.context + block_size - 1) / block_size;
    kv = {.dtype = dtype,
          .block_size = block_size,
          .n_kv_heads = s.n_kv_heads,
          .head_dim = s.head_dim,
          .v_dim = s.head_dim};
    const int64_t batch_bytes = step.batch * per_sequence * kv.block_bytes();
    const int64_t n_batches = std::clamp<int64_t>(bench.rotated_bytes / batch_bytes, 1, 256);
    kv.n_blocks = n_batches * step.batch * per_sequence;
    const Shape shape{kv.n_blocks, s.n_kv_heads, block_size, s.head_dim};
    k = bench.device.allocate(dtype, shape);
    v = bench.device.allocate(dtype, shape);
    bench.device.fill_synthetic(k);
    bench.device.fill_synthetic(v);
    kv.k = k.data();
    kv.v = v.data();
    batches.resize(static_cast<size_t>(n_batches));
    for (size_t i = 0; i < batches.size(); ++i) {
      lay_out(batches[i], step, per_sequence, static_cast<int64_t>(i) * step.batch * per_sequence);
    }
    for (int64_t h = 0; h < s.n_heads; ++h) {
      head_to_kv.push_back(static_cast<int32_t>(h * s.n_kv_heads / s.n_heads));  // NOLINT
    }
  }
  const Batch& batch(int64_t call) const {
    return batches[static_cast<size_t>(call) % batches.size()];
  }

 private:
  static void lay_out(Batch& batch, const StepShape& step, int64_t per_sequence, int64_t first) {
    batch.blocks.resize(static_cast<size_t>(step.batch * per_sequence));
    std::iota(batch.blocks.begin(), batch.blocks.end(), static_cast<int32_t>(first));
    batch.sequences.reserve(static_cast<size_t>(step.batch));
    batch.views.reserve(static_cast<size_t>(step.batch));
    for (int64_t i = 0; i < step.batch; ++i) {
      const std::span blocks(batch.blocks.data() + i * per_sequence,
                             static_cast<size_t>(per_sequence));
      batch.views.push_back(
          batch.sequences.emplace_back(step.n_rows, step.context, blocks, block_size)
              .view(i * step.n_rows));
    }
  }
};

using SharedCache = std::shared_ptr<const Cache>;

BenchOp attention_op(const RankBench& bench, const StepShape& step, const SharedCache& cache) {
  const RankShape& s = bench.shape;
  const Shape shape{step.rows(), s.n_heads, s.head_dim};
  const Rotation q = activations(bench, shape);
  const Rotation out = activations(bench, shape);
  const float scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
  return {
      .name = "attention",
      .shape = fmt::format(
          "{} x {} heads, {} kv, context {}", step.rows(), s.n_heads, s.n_kv_heads, step.context),
      .bound = step.is_prefill() ? Bound::arithmetic : Bound::memory,
      .run = [&device = bench.device, cache, q, out, scale](int64_t call) {
        device.attention(q.at(call),
                         cache->kv,
                         {.sequences = cache->batch(call).views,
                          .scale = scale,
                          .head_to_kv = cache->head_to_kv},
                         out.at(call));
      }};
}

BenchOp write_op(const RankBench& bench, const StepShape& step, const SharedCache& cache) {
  const RankShape& s = bench.shape;
  const Shape shape{step.rows(), s.n_kv_heads, s.head_dim};
  const Rotation k = activations(bench, shape);
  const Rotation v = activations(bench, shape);
  const int64_t per_sequence = static_cast<int64_t>(cache->batch(0).blocks.size()) / step.batch;
  const auto slots = [cache, step, per_sequence](int64_t call) {
    std::vector<int64_t> of_rows;
    of_rows.reserve(static_cast<size_t>(step.rows()));
    for (int64_t row = 0; row < step.rows(); ++row) {
      const int64_t position = step.context - step.n_rows + row % step.n_rows;
      const int64_t block = row / step.n_rows * per_sequence + position / block_size;
      of_rows.push_back(cache->batch(call).blocks[static_cast<size_t>(block)] * block_size +
                        position % block_size);
    }
    return of_rows;
  };
  return {.name = "write_kv",
          .shape = fmt::format("{} x {} kv heads", step.rows(), s.n_kv_heads),
          .run = [&device = bench.device, cache, k, v, slots](int64_t call) {
            device.write_kv(k.at(call), v.at(call), cache->kv, slots(call));
          }};
}

// What goes round a ring of context parallelism: whole blocks, packed.
BenchOp gather_op(const RankBench& bench, const StepShape& step, const SharedCache& cache) {
  const auto n_blocks = static_cast<int64_t>(cache->batch(0).blocks.size());
  const Shape shape{n_blocks, cache->kv.n_kv_heads, block_size, cache->kv.head_dim};
  const Rotation k = activations(bench, shape);
  const Rotation v = activations(bench, shape);
  return {.name = "gather_blocks",
          .shape = fmt::format("{} blocks, context {}", n_blocks, step.context),
          .run = [&device = bench.device, cache, k, v, n_blocks](int64_t call) {
            KvView packed = cache->kv;
            packed.k = k.at(call).data();
            packed.v = v.at(call).data();
            packed.n_blocks = n_blocks;
            device.gather_blocks(cache->kv, cache->batch(call).blocks, packed);
          }};
}

}  // namespace

std::vector<BenchOp> cache_ops(const RankBench& bench, const StepShape& step) {
  const RankShape& s = bench.shape;
  const auto cache = std::make_shared<const Cache>(bench, step);
  const Rotation total = floats(bench, {step.rows(), s.n_heads, s.head_dim});
  const Rotation part = floats(bench, {step.rows(), s.n_heads, s.head_dim});
  const Rotation total_lse = floats(bench, {step.rows(), s.n_heads});
  const Rotation part_lse = floats(bench, {step.rows(), s.n_heads});
  const Rotation out = activations(bench, {step.rows(), s.n_heads, s.head_dim});
  const std::string rows = fmt::format("{} x {} heads", step.rows(), s.n_heads);
  CudaDevice& device = bench.device;
  return {attention_op(bench, step, cache),
          write_op(bench, step, cache),
          gather_op(bench, step, cache),
          {.name = "merge_attention",
           .shape = rows,
           .run =
               [=, &device](int64_t call) {
                 device.merge_attention(
                     total.at(call), total_lse.at(call), part.at(call), part_lse.at(call));
               }},
          {.name = "finish_attention", .shape = rows, .run = [=, &device](int64_t call) {
             device.finish_attention(total.at(call), total_lse.at(call), {}, out.at(call));
           }}};
}

}  // namespace testbed::bench
