// Attention of the CUDA device over rows and keys in several runs of positions, as context
// parallelism leaves them, and against the unit references.
#include "kernels/cuda/attention_tables.hpp"
#include "tests/trials.hpp"
#include "tests/unit/attention_runs.hpp"
#include "tests/unit/attention_units.hpp"
#include "tests/unit/cuda_attention_support.hpp"

namespace testbed::cuda {
namespace {

using cpu::AttentionBatch;
using cpu::AttentionDims;
using cpu::AttentionRequest;

TEST(CudaAttentionRuns, random_runs_with_gaps) {
  std::mt19937 random(5);
  DeviceAttention device;
  for (int i = 0; i < trials(60); ++i) {
    const AttentionDims dims = cpu::random_dims(random);
    const int64_t longest = i % 3 == 0 ? 8 : 90;
    std::vector<AttentionRequest> requests;
    for (int r = 0; r < 2; ++r) {
      std::vector<PositionRun> rows = cpu::random_runs(random, longest, 60);
      if (i % 4 == 1) rows.resize(std::min<size_t>(rows.size(), 1));
      for (PositionRun& run : rows) run.first += 100 * r;
      requests.push_back({rows, cpu::random_runs(random, 2 * longest, 200)});
    }
    AttentionBatch batch(dims, requests);
    if (batch.n_rows() == 0) continue;
    device.run(batch.args());
    batch.expect_equal("cuda", batch.out(), batch.lse(), 1.0, weight_rounding(dims));
    ASSERT_FALSE(HasFatalFailure()) << "batch " << i;
  }
}

// D8: rows before all keys, a window in a gap, no key at all: 0 and -inf, never NaN.
TEST(CudaAttentionRuns, rows_without_a_key_are_zero) {
  DeviceAttention device;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const bool partial : {false, true}) {
      for (const int64_t n_heads : {2, 8}) {
        AttentionBatch batch({.dtype = dtype,
                              .n_heads = n_heads,
                              .n_kv_heads = 2,
                              .window = 10,
                              .with_sinks = true,
                              .partial = partial},
                             {{{{3, 20}}, {{40, 5}}},
                              {{{3, 20}, {200, 9}, {700, 3}}, {{0, 5}, {195, 2}, {690, 20}}},
                              {{{3, 1}}, {{40, 5}}},
                              {{{5, 2}}, {}}});
        device.run(batch.args());
        batch.expect_equal("cuda", batch.out(), batch.lse(), 1.0, weight_rounding(batch.dims()));
        if (HasFatalFailure()) return;
      }
    }
  }
}

void expect_ring(DeviceAttention& device, AttentionDims dims, int64_t n_ranks) {
  const int64_t n_tokens = 150;
  std::vector<PositionRun> all{{0, n_tokens}};
  for (int64_t rank = 0; rank < n_ranks; ++rank) {
    const std::vector<PositionRun> rows = cpu::zigzag(n_tokens, n_ranks, rank);
    dims.partial = false;
    AttentionBatch whole(dims, {{rows, all}});
    dims.partial = true;
    Tensor total(DType::F32, whole.out().shape());
    Tensor total_lse(DType::F32, {whole.n_rows(), dims.n_heads});
    for (int64_t step = 0; step < n_ranks; ++step) {
      AttentionBatch part(dims, {{rows, cpu::zigzag(n_tokens, n_ranks, (rank + step) % n_ranks)}});
      device.run(part.args());
      if (step == 0) {
        std::memcpy(total.data(), part.out().data(), static_cast<size_t>(total.n_bytes()));
        std::memcpy(total_lse.data(), part.lse().data(), static_cast<size_t>(total_lse.n_bytes()));
      } else {
        device.merge(total, total_lse, part.out(), part.lse());
      }
    }
    device.finish(total, total_lse, whole.sinks(), whole.out());
    // Each step may be off by what one pass over all keys may.
    whole.expect_equal(
        "cuda", whole.out(), {}, static_cast<double>(n_ranks), weight_rounding(whole.dims()));
  }
}

TEST(CudaAttentionRuns, parts_of_a_ring_merge_to_the_whole) {
  DeviceAttention device;
  for (const int64_t n_ranks : {2, 3}) {
    for (const int64_t window : {0, 20}) {
      for (const DType dtype : {DType::F32, DType::BF16}) {
        expect_ring(device,
                    {.dtype = dtype,
                     .n_heads = 4,
                     .n_kv_heads = 2,
                     .head_dim = 24,
                     .window = window,
                     .with_sinks = true},
                    n_ranks);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaAttentionRuns, nothing_merges_with_nothing_to_nothing) {
  const float none = -std::numeric_limits<float>::infinity();
  DeviceAttention device;
  Tensor total(DType::F32, {1, 3, 2}), part(DType::F32, {1, 3, 2}), out(DType::F32, {1, 3, 2});
  Tensor lse(DType::F32, {1, 3}), part_lse(DType::F32, {1, 3}), sinks(DType::F32, {3});
  const float totals[] = {0, 0, 5, 6, 0, 0}, parts[] = {0, 0, 0, 0, 7, 8};
  const float lses[] = {none, 200, none}, part_lses[] = {none, none, -200};
  std::copy_n(totals, 6, total.as<float>());
  std::copy_n(parts, 6, part.as<float>());
  std::copy_n(lses, 3, lse.as<float>());
  std::copy_n(part_lses, 3, part_lse.as<float>());
  device.merge(total, lse, part, part_lse);
  const float merged[] = {0, 0, 5, 6, 7, 8}, merged_lse[] = {none, 200, -200};
  EXPECT_TRUE(std::equal(merged, merged + 6, total.as<float>()));
  EXPECT_TRUE(std::equal(merged_lse, merged_lse + 3, lse.as<float>()));
  device.finish(total, lse, sinks, out);
  const float finished[] = {0, 0, 5, 6, 0, 0};  // e^200 and e^-200 beside a sink of 0
  EXPECT_TRUE(std::equal(finished, finished + 6, out.as<float>()));
}

// Slots behind a block's tokens are skipped, windows leave blocks out, and no tile spans the gap
// between two slices.
TEST(CudaAttentionTables, numbers_of_keys_and_tiles) {
  const KvBlock blocks[] = {{7, 16, 0}, {3, 4, 16}, {5, 16, 400}, {2, 9, 416}};
  const PositionRun rows[] = {{10, 3}, {420, 2}};
  const PositionRun keys[] = {{0, 20}, {400, 25}};
  const AttentionSequence sequence{0, 5, rows, blocks, keys};
  KvView kv;
  kv.n_blocks = 8;
  kv.block_size = 16;
  const AttentionTables all = attention_tables({&sequence, 1}, kv, 0, {});
  EXPECT_EQ(all.blocks, (std::vector<int32_t>{7, 3, 5, 2}));
  EXPECT_TRUE(all.has_holes);
  EXPECT_EQ(all.n_single_rows, 5);
  EXPECT_EQ(all.rows[0].end_key, 11);
  EXPECT_EQ(all.rows[3].end_key, 48 + 5);
  const AttentionTables window =
      attention_tables({&sequence, 1}, kv, 8, {.min_tiled_rows = 5, .queries_per_tile = 64});
  EXPECT_EQ(window.n_single_rows, 0);
  ASSERT_EQ(window.tiles.size(), 1U);  // a gap of 32 numbers is less than a tile
  EXPECT_EQ(window.rows[0].first_key, 3);
  EXPECT_EQ(window.rows[4].first_key, 32 + 14);
  EXPECT_EQ(window.tiles[0].first_key, 3);
  EXPECT_EQ(window.tiles[0].end_key, 48 + 6);
  EXPECT_GE(window.tiles[0].all_first, window.tiles[0].all_end);  // no key is seen by all
  const AttentionSequence last{0, 2, {rows + 1, 1}, blocks, keys};
  const AttentionTables end = attention_tables({&last, 1}, kv, 8, {});
  EXPECT_EQ(end.blocks, (std::vector<int32_t>{5, 2}));
  EXPECT_EQ(end.rows[0].table, -2);
  EXPECT_FALSE(end.has_holes);
}

void expect_case(DeviceAttention& device,
                 const nlohmann::json& c,
                 const cpu::References& tensors,
                 int64_t block_size) {
  cpu::UnitCase unit(c, tensors, block_size);
  const auto name = c.at("name").get<std::string>();
  const ReferenceTensor& want = tensors.at(name + ".out");
  const Tensor out(DType::F32, unit.out_shape());
  device.run(unit.args(out, {}));
  ASSERT_NO_FATAL_FAILURE(cpu::expect_near(out, want, name));
  const Tensor part(DType::F32, unit.out_shape());
  const Tensor lse(DType::F32, {out.shape()[0], out.shape()[1]});
  device.run(unit.args(part, lse));
  device.finish(part, lse, unit.sinks(), out);
  ASSERT_NO_FATAL_FAILURE(cpu::expect_near(out, want, name + " finished"));
  if (!unit.sinks().empty()) cpu::add_sinks(lse, unit.sinks());
  ASSERT_NO_FATAL_FAILURE(cpu::expect_near(lse, tensors.at(name + ".lse"), name + " lse"));
}

TEST(CudaAttentionUnits, every_case) {
  const cpu::References tensors = read_reference_tensors(cpu::units + "attention.safetensors");
  DeviceAttention device;
  const int64_t block_sizes[] = {1, 5, 16};
  size_t i = 0;
  for (const auto& c : cpu::cases()) {
    ASSERT_NO_FATAL_FAILURE(expect_case(device, c, tensors, block_sizes[i++ % 3]));
  }
}

}  // namespace
}  // namespace testbed::cuda
