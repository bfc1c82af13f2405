// Attention over rows and keys in several runs of positions, as context parallelism leaves them:
// gaps, rows without a key, partial results that merge to the whole, and the cache's copies.
#include "tests/trials.hpp"
#include "tests/unit/attention_runs.hpp"

namespace testbed::cpu {
namespace {

TEST(CpuAttentionRuns, random_runs_with_gaps) {
  std::mt19937 random(5);
  for (int i = 0; i < trials(150); ++i) {
    const AttentionDims dims = random_dims(random);
    const int64_t end = i % 10 == 0 ? 1500 : 200;  // the longer ones over several chunks
    const int64_t longest = i % 3 == 0 ? 8 : 90;
    std::vector<AttentionRequest> requests;
    for (int r = 0; r < 2; ++r) {
      // Rows of the last part, so that the double sums stay few.
      std::vector<PositionRun> rows = random_runs(random, longest, 100);
      for (PositionRun& run : rows) run.first += end > 200 ? 1300 * r : 100 * r;
      requests.push_back({rows, random_runs(random, 2 * longest, end)});
    }
    AttentionBatch batch(dims, requests);
    for (const Isa isa : isas_here()) {
      batch.run(isa, 1 + i % 3);
      ASSERT_NO_FATAL_FAILURE(batch.expect_correct(isa)) << "batch " << i;
    }
  }
}

// D8: rows before all keys, a window in a gap, no key at all: 0 and -inf, never NaN.
TEST(CpuAttentionRuns, rows_without_a_key_are_zero) {
  for (const bool partial : {false, true}) {
    for (const bool with_sinks : {false, true}) {
      AttentionBatch batch({.n_heads = 4,
                            .n_kv_heads = 2,
                            .window = 10,
                            .with_sinks = with_sinks,
                            .partial = partial},
                           {{{{3, 20}}, {{40, 5}}},
                            {{{3, 20}, {200, 9}, {700, 3}}, {{0, 5}, {195, 2}, {690, 20}}},
                            {{{5, 2}}, {}}});
      for (const Isa isa : isas_here()) {
        batch.run(isa, 2);
        ASSERT_NO_FATAL_FAILURE(batch.expect_correct(isa));
      }
    }
  }
}

void expect_ring(AttentionDims dims, int64_t n_ranks, Isa isa) {
  const int64_t n_tokens = 150;
  std::vector<PositionRun> all{{0, n_tokens}};
  ThreadPool pool(2, false);
  for (int64_t rank = 0; rank < n_ranks; ++rank) {
    const std::vector<PositionRun> rows = zigzag(n_tokens, n_ranks, rank);
    dims.partial = false;
    AttentionBatch whole(dims, {{rows, all}});
    dims.partial = true;
    Tensor total(DType::F32, whole.out().shape());
    Tensor total_lse(DType::F32, {whole.n_rows(), dims.n_heads});
    for (int64_t step = 0; step < n_ranks; ++step) {
      AttentionBatch part(dims, {{rows, zigzag(n_tokens, n_ranks, (rank + step) % n_ranks)}});
      part.run(isa, 1);
      if (step == 0) {
        std::memcpy(total.data(), part.out().data(), static_cast<size_t>(total.n_bytes()));
        std::memcpy(total_lse.data(), part.lse().data(), static_cast<size_t>(total_lse.n_bytes()));
      } else {
        merge_attention(total, total_lse, part.out(), part.lse(), pool);
      }
    }
    finish_attention(total, total_lse, whole.sinks(), whole.out(), pool);
    // Each step may be off by what one pass over all keys may.
    whole.expect_equal(isa, whole.out(), {}, static_cast<double>(n_ranks));
  }
}

TEST(CpuAttentionRuns, parts_of_a_ring_merge_to_the_whole) {
  for (const Isa isa : isas_here()) {
    for (const int64_t n_ranks : {2, 3, 4}) {
      for (const int64_t window : {0, 20}) {
        for (const DType dtype : {DType::F32, DType::BF16}) {
          expect_ring({.dtype = dtype,
                       .n_heads = 4,
                       .n_kv_heads = 2,
                       .head_dim = 24,
                       .window = window,
                       .with_sinks = true},
                      n_ranks,
                      isa);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(CpuAttentionRuns, nothing_merges_with_nothing_to_nothing) {
  const float none = -std::numeric_limits<float>::infinity();
  ThreadPool pool(1, false);
  Tensor total(DType::F32, {1, 3, 2}), part(DType::F32, {1, 3, 2}), out(DType::F32, {1, 3, 2});
  Tensor lse(DType::F32, {1, 3}), part_lse(DType::F32, {1, 3}), sinks(DType::F32, {3});
  const float totals[] = {0, 0, 5, 6, 0, 0}, parts[] = {0, 0, 0, 0, 7, 8};
  const float lses[] = {none, 200, none}, part_lses[] = {none, none, -200};
  std::copy_n(totals, 6, total.as<float>());
  std::copy_n(parts, 6, part.as<float>());
  std::copy_n(lses, 3, lse.as<float>());
  std::copy_n(part_lses, 3, part_lse.as<float>());
  merge_attention(total, lse, part, part_lse, pool);
  const float merged[] = {0, 0, 5, 6, 7, 8}, merged_lse[] = {none, 200, -200};
  EXPECT_TRUE(std::equal(merged, merged + 6, total.as<float>()));
  EXPECT_TRUE(std::equal(merged_lse, merged_lse + 3, lse.as<float>()));
  finish_attention(total, lse, sinks, out, pool);
  const float finished[] = {0, 0, 5, 6, 0, 0};  // e^200 and e^-200 beside a sink of 0
  EXPECT_TRUE(std::equal(finished, finished + 6, out.as<float>()));
}

TEST(CpuAttentionCache, tokens_of_other_ranks_are_not_written) {
  ThreadPool pool(2, false);
  for (const bool v_in_k : {false, true}) {
    Tensor k_cache(DType::F32, {2, 2, 4, 6}), v_cache(DType::F32, {2, 2, 4, 3});
    const KvView kv{k_cache.data(), v_in_k ? nullptr : v_cache.data(), DType::F32, 2, 4, 2, 6, 3};
    Tensor k(DType::F32, {3, 2, 6}), v(DType::F32, {3, 2, 3});
    for (int64_t i = 0; i < k.n_elements(); ++i) put(k, i, static_cast<float>(1 + i));
    for (int64_t i = 0; i < v.n_elements(); ++i) put(v, i, static_cast<float>(101 + i));
    const std::vector<int64_t> slots{6, -1, 1};  // block 1 slot 2, none, block 0 slot 1
    write_kv(k, v_in_k ? TensorView{} : v.view(), kv, slots, pool);
    const auto expect_rows = [&](TensorView rows, TensorView cache, int64_t dim) {
      double sum = 0;
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t d = 0; d < dim; ++d) {
          EXPECT_EQ(get(cache, ((2 + h) * 4 + 2) * dim + d), get(rows, h * dim + d));
          EXPECT_EQ(get(cache, (h * 4 + 1) * dim + d), get(rows, (4 + h) * dim + d));
          sum += get(rows, h * dim + d) + get(rows, (4 + h) * dim + d);
        }
      }
      for (int64_t i = 0; i < cache.n_elements(); ++i) sum -= get(cache, i);
      EXPECT_EQ(sum, 0);  // nothing elsewhere
    };
    expect_rows(k, k_cache, 6);
    if (!v_in_k) expect_rows(v, v_cache, 3);
  }
}

TEST(CpuAttentionCache, gathered_blocks_are_the_blocks) {
  ThreadPool pool(2, false);
  const int32_t blocks[] = {4, 0, 3};
  for (const bool v_in_k : {false, true}) {
    Tensor k(DType::BF16, {5, 2, 4, 6}), v(DType::BF16, {5, 2, 4, 2});
    for (int64_t i = 0; i < k.n_elements(); ++i) put(k, i, static_cast<float>(i));
    for (int64_t i = 0; i < v.n_elements(); ++i) put(v, i, static_cast<float>(-i));
    Tensor k_to(DType::BF16, {3, 2, 4, 6}), v_to(DType::BF16, {3, 2, 4, 2});
    const auto view = [&](const Tensor& keys, const Tensor& values) {
      return KvView{
          keys.data(), v_in_k ? nullptr : values.data(), DType::BF16, keys.shape()[0], 4, 2, 6, 2};
    };
    gather_blocks(view(k, v), blocks, view(k_to, v_to), pool);
    for (int64_t i = 0; i < k_to.n_elements(); ++i) {
      EXPECT_EQ(get(k_to, i), get(k, int64_t{48} * blocks[i / 48] + i % 48));
    }
    for (int64_t i = 0; i < v_to.n_elements(); ++i) {
      EXPECT_EQ(get(v_to, i), v_in_k ? 0 : get(v, int64_t{16} * blocks[i / 16] + i % 16));
    }
  }
}

}  // namespace
}  // namespace testbed::cpu
