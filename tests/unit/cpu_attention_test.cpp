// Paged attention of whole sequences at every level of this processor: against plain sums in double
// over random caches, and what must not change a row (other rows, threads, keys it does not see).
#include <sys/mman.h>

#include <cstring>

#include "kernels/base/contiguous_sequence.hpp"
#include "tests/unit/attention_batch.hpp"

namespace testbed::cpu {
namespace {

void expect_correct_everywhere(AttentionBatch& batch, int n_threads) {
  for (const Isa isa : isas_here()) {
    batch.run(isa, n_threads);
    ASSERT_NO_FATAL_FAILURE(batch.expect_correct(isa));
  }
}

TEST(CpuAttention, every_head_size_and_group) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const int64_t head_dim : {2, 8, 16, 18, 24, 40, 64, 80, 128, 200, 256}) {
      for (const int64_t group : {1, 3, 4, 8}) {
        AttentionBatch batch({.dtype = dtype,
                              .n_heads = 2 * group,
                              .n_kv_heads = 2,
                              .head_dim = head_dim,
                              .scale = 1.0F / std::sqrt(static_cast<float>(head_dim)),
                              .partial = group == 3},
                             {plain(0, 19), plain(70, 1), plain(62, 3)});
        ASSERT_NO_FATAL_FAILURE(expect_correct_everywhere(batch, 1)) << head_dim << " " << group;
      }
    }
  }
}

// Multi-head latent attention, absorbed (values lie in the keys) and expanded, and large heads.
TEST(CpuAttention, values_of_another_size_than_keys) {
  struct Size {
    int64_t head_dim;
    int64_t v_dim;
    bool v_in_k;
  };
  for (const Size& size : {Size{576, 512, true},
                           Size{192, 128, false},
                           Size{512, 512, false},
                           Size{40, 32, true},
                           Size{24, 16, false},
                           Size{16, 34, false}}) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      AttentionBatch batch({.dtype = dtype,
                            .n_heads = 6,
                            .n_kv_heads = size.v_in_k ? 1 : 3,
                            .head_dim = size.head_dim,
                            .v_dim = size.v_dim,
                            .v_in_k = size.v_in_k,
                            .scale = 1.0F / std::sqrt(static_cast<float>(size.head_dim))},
                           {plain(0, 21), plain(530, 1), plain(80, 2)});
      ASSERT_NO_FATAL_FAILURE(expect_correct_everywhere(batch, 2)) << size.head_dim;
    }
  }
}

TEST(CpuAttention, softcap_and_sinks) {
  for (const float softcap : {0.0F, 0.5F, 4.0F, 50.0F}) {
    for (const int64_t window : {0, 5}) {
      AttentionBatch batch({.n_heads = 4,
                            .n_kv_heads = 2,
                            .head_dim = 32,
                            .window = window,
                            .softcap = softcap,
                            .with_sinks = true},
                           {plain(0, 70), plain(600, 1)});
      ASSERT_NO_FATAL_FAILURE(expect_correct_everywhere(batch, 2)) << softcap << " " << window;
    }
  }
}

TEST(CpuAttention, windows_skip_released_blocks) {
  for (const int64_t window : {1, 5, 16, 63, 64, 65, 600}) {
    for (const int64_t block_size : {3, 16, 64}) {
      const auto kept = [&](int64_t first, int64_t n) {
        const int64_t begin = std::max<int64_t>(0, first - window + 1) / block_size * block_size;
        return AttentionRequest{{{first, n}}, {{begin, first + n - begin}}};
      };
      AttentionBatch batch(
          {.n_heads = 4, .n_kv_heads = 2, .block_size = block_size, .window = window},
          {kept(1030, 1), kept(0, 70), kept(500, 30), kept(1000, 2)});
      ASSERT_NO_FATAL_FAILURE(expect_correct_everywhere(batch, 2)) << window << " " << block_size;
    }
  }
}

// What a window has released changes no bit of what it still sees.
TEST(CpuAttention, released_blocks_do_not_move_the_chunks) {
  const AttentionDims dims{.n_heads = 2, .head_dim = 32, .window = 700};
  AttentionBatch all(dims, {plain(1500, 3)});
  AttentionBatch kept(dims, {{{{1500, 3}}, {{800, 703}}}});
  for (const Isa isa : isas_here()) {
    all.run(isa, 1);
    kept.run(isa, 1);
    EXPECT_TRUE(std::equal(all.out().as<float>(),
                           all.out().as<float>() + all.out().n_elements(),
                           kept.out().as<float>()))
        << isa_name(isa);
  }
}

TEST(CpuAttention, long_context_and_many_heads) {
  AttentionBatch batch(
      {.dtype = DType::BF16, .n_heads = 100, .n_kv_heads = 1, .head_dim = 64, .scale = 0.125F},
      {plain(2047, 2)});
  ASSERT_NO_FATAL_FAILURE(expect_correct_everywhere(batch, 2));
  AttentionBatch decode(
      {.dtype = DType::BF16, .n_heads = 2, .n_kv_heads = 2, .head_dim = 128, .scale = 0.1F},
      {plain(9000, 1)});
  ASSERT_NO_FATAL_FAILURE(expect_correct_everywhere(decode, 3));
}

TEST(CpuAttention, heads_of_one_kv_head_need_not_be_neighbours) {
  AttentionBatch batch({.n_heads = 5, .n_kv_heads = 3}, {plain(0, 40), plain(50, 1)});
  batch.head_to_kv = {2, 0, 2, 0, 2};
  ASSERT_NO_FATAL_FAILURE(expect_correct_everywhere(batch, 1));
}

// The largest score far above the others, and scores that differ by more than exp can express.
TEST(CpuAttention, extreme_scores_stay_finite) {
  for (const float softcap : {0.0F, 30.0F}) {
    AttentionBatch batch({.n_heads = 2, .scale = 100.0F, .softcap = softcap, .with_sinks = true},
                         {plain(0, 200)});
    ASSERT_NO_FATAL_FAILURE(expect_correct_everywhere(batch, 1));
  }
}

bool same_bytes(TensorView all, int64_t first_row, TensorView some, int64_t n_rows) {
  const int64_t row_bytes = dtype_bytes(all.dtype(), all.row_elements());
  return std::memcmp(static_cast<const std::byte*>(all.data()) + first_row * row_bytes,
                     some.data(),
                     static_cast<size_t>(n_rows * row_bytes)) == 0;
}

// Few rows and many take different ways, KV heads are computed together or apart.
TEST(CpuAttention, a_row_depends_on_neither_threads_nor_batch) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const AttentionDims dims{
        .dtype = dtype, .n_heads = 6, .n_kv_heads = 2, .head_dim = 80, .scale = 0.1F};
    for (const Isa isa : isas_here()) {
      AttentionBatch prefill(dims, {plain(0, 700)});
      prefill.run(isa, 1);
      const Tensor alone(dtype, prefill.out().shape());
      std::memcpy(alone.data(), prefill.out().data(), static_cast<size_t>(alone.n_bytes()));
      prefill.run(isa, 4);
      EXPECT_TRUE(same_bytes(alone, 0, prefill.out(), 700)) << isa_name(isa);
      // The last positions as decode steps of one and two rows, with the same queries.
      for (const int64_t n : {1, 2}) {
        AttentionBatch decode(dims, {plain(700 - n, n), plain(30, 2)});
        for (const int n_threads : {1, 3}) {
          decode.run(isa, n_threads);
          EXPECT_TRUE(same_bytes(alone, 700 - n, decode.out(), n)) << isa_name(isa) << " " << n;
        }
      }
    }
  }
}

// 3e9 elements of K and of V reserved, four pages of each touched.
TEST(CpuAttention, D23_kv_element_offset_beyond_2_31) {
  const int64_t block_size = 16, head_dim = 64;
  const int64_t n_blocks = int64_t{3'000'000'000} / (block_size * head_dim);
  const auto n_bytes = static_cast<size_t>(n_blocks * block_size * head_dim * 2);
  const auto reserve = [&] {
    return mmap(nullptr,
                n_bytes,
                PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1,
                0);
  };
  void* k = reserve();
  void* v = reserve();
  ASSERT_NE(k, MAP_FAILED);
  ASSERT_NE(v, MAP_FAILED);
  const KvView kv{k, v, DType::BF16, n_blocks, block_size, 1, head_dim, head_dim};
  const int64_t n_keys = 20;
  const std::vector<int32_t> blocks{static_cast<int32_t>(n_blocks - 1),
                                    static_cast<int32_t>(n_blocks - 3)};
  Tensor k_rows(DType::BF16, {n_keys, 1, head_dim});
  Tensor v_rows(DType::BF16, {n_keys, 1, head_dim});
  std::vector<int64_t> slots;
  for (int64_t j = 0; j < n_keys; ++j) {
    slots.push_back(blocks[static_cast<size_t>(j / block_size)] * block_size + j % block_size);
    for (int64_t d = 0; d < head_dim; ++d) put(v_rows, j * head_dim + d, static_cast<float>(j));
  }
  ASSERT_GT(slots[0] * head_dim, int64_t{1} << 31);
  ThreadPool pool(1, false);
  write_kv(k_rows, v_rows, kv, slots, pool);
  const Tensor q(DType::BF16, {1, 1, head_dim});
  const ContiguousSequence decode(1, n_keys, blocks, block_size);
  const AttentionSequence sequence = decode.view();
  const std::vector<int32_t> head_to_kv{0};
  for (const Isa isa : isas_here()) {
    const Tensor out(DType::BF16, q.shape());
    paged_attention(
        {.q = q, .kv = kv, .sequences = {&sequence, 1}, .head_to_kv = head_to_kv, .out = out},
        pool,
        isa);
    for (int64_t d = 0; d < head_dim; ++d)
      EXPECT_EQ(get(out, d), 9.5) << isa_name(isa);  // mean of 0..19
  }
  munmap(k, n_bytes);
  munmap(v, n_bytes);
}

}  // namespace
}  // namespace testbed::cpu
