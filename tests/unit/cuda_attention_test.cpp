// Paged attention of the CUDA device, emulated, against plain sums in double over random caches.
#include "kernels/base/errors.hpp"
#include "tests/unit/cuda_attention_support.hpp"

namespace testbed::cuda {
namespace {

using cpu::AttentionBatch;
using cpu::AttentionDims;
using cpu::AttentionRequest;
using cpu::plain;

void expect_correct(DeviceAttention& device, AttentionBatch& batch) {
  device.run(batch.args());
  batch.expect_equal("cuda", batch.out(), batch.lse(), 1.0, weight_rounding(batch.dims()));
}

float scale_for(int64_t head_dim) { return 1.0F / std::sqrt(static_cast<float>(head_dim)); }

TEST(CudaAttention, every_head_size_and_group) {
  DeviceAttention device;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const int64_t head_dim : {2, 8, 16, 18, 24, 40, 64, 80, 128, 200, 256}) {
      for (const int64_t group : {1, 3, 8}) {
        AttentionBatch batch({.dtype = dtype,
                              .n_heads = 2 * group,
                              .n_kv_heads = 2,
                              .head_dim = head_dim,
                              .scale = scale_for(head_dim),
                              .partial = group == 3},
                             {plain(0, 11), plain(70, 1), plain(33, 3)});
        ASSERT_NO_FATAL_FAILURE(expect_correct(device, batch))
            << dtype_name(dtype) << " " << head_dim << " " << group;
      }
    }
  }
}

// Multi-head latent attention, absorbed (values lie in the keys) and expanded, and large heads.
TEST(CudaAttention, values_of_another_size_than_keys) {
  struct Size {
    int64_t head_dim;
    int64_t v_dim;
    bool v_in_k;
  };
  DeviceAttention device;
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
                            .scale = scale_for(size.head_dim)},
                           {plain(0, 9), plain(130, 1), plain(80, 2)});
      ASSERT_NO_FATAL_FAILURE(expect_correct(device, batch)) << size.head_dim;
    }
  }
}

// On tensor cores: all 128 heads of a latent, a few, and heads of 512, alone, split and in prompts.
TEST(CudaAttention, wide_heads) {
  struct Size {
    int64_t n_heads;
    int64_t head_dim;
    int64_t v_dim;
    bool v_in_k;
  };
  DeviceAttention device;
  for (const Size& size :
       {Size{70, 576, 512, true}, Size{5, 560, 504, true}, Size{3, 512, 512, false}}) {
    for (const bool partial : {false, true}) {
      AttentionBatch batch({.dtype = DType::BF16,
                            .n_heads = size.n_heads,
                            .head_dim = size.head_dim,
                            .v_dim = size.v_dim,
                            .v_in_k = size.v_in_k,
                            .window = partial ? 0 : 600,
                            .scale = scale_for(size.head_dim),
                            .softcap = partial ? 3.0F : 0.0F,
                            .with_sinks = true,
                            .partial = partial},
                           {plain(600, 1), plain(20, 1), plain(30, 6)});
      ASSERT_NO_FATAL_FAILURE(expect_correct(device, batch)) << size.head_dim;
    }
  }
}

// Several tiles of keys and of rows, whose last ones are not full.
TEST(CudaAttention, prompts_over_several_tiles) {
  DeviceAttention device;
  for (const int64_t group : {1, 5}) {
    for (const int64_t window : {0, 70}) {
      AttentionBatch batch({.dtype = DType::BF16,
                            .n_heads = 2 * group,
                            .n_kv_heads = 2,
                            .head_dim = 64,
                            .window = window,
                            .scale = 0.125F},
                           {plain(0, 150), plain(195, 70)});
      ASSERT_NO_FATAL_FAILURE(expect_correct(device, batch)) << group << " " << window;
    }
  }
}

TEST(CudaAttention, softcap_and_sinks) {
  DeviceAttention device;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const float softcap : {0.0F, 0.5F, 50.0F}) {
      for (const int64_t window : {0, 5}) {
        for (const int64_t n_heads : {2, 6}) {
          AttentionBatch batch({.dtype = dtype,
                                .n_heads = n_heads,
                                .n_kv_heads = 2,
                                .head_dim = 32,
                                .window = window,
                                .softcap = softcap,
                                .with_sinks = true},
                               {plain(0, 20), plain(300, 1)});
          ASSERT_NO_FATAL_FAILURE(expect_correct(device, batch)) << softcap << " " << window;
        }
      }
    }
  }
}

TEST(CudaAttention, windows_skip_released_blocks) {
  DeviceAttention device;
  for (const int64_t window : {1, 5, 64, 65, 600}) {
    for (const int64_t block_size : {3, 16, 64}) {
      const auto kept = [&](int64_t first, int64_t n) {
        const int64_t begin = std::max<int64_t>(0, first - window + 1) / block_size * block_size;
        return AttentionRequest{{{first, n}}, {{begin, first + n - begin}}};
      };
      for (const DType dtype : {DType::F32, DType::BF16}) {
        AttentionBatch batch({.dtype = dtype,
                              .n_heads = 6,
                              .n_kv_heads = 2,
                              .block_size = block_size,
                              .window = window},
                             {kept(1030, 1), kept(0, 10), kept(500, 12), kept(1000, 2)});
        ASSERT_NO_FATAL_FAILURE(expect_correct(device, batch)) << window << " " << block_size;
      }
    }
  }
}

TEST(CudaAttention, heads_of_one_kv_head_need_not_be_neighbours) {
  DeviceAttention device;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    AttentionBatch batch({.dtype = dtype, .n_heads = 5, .n_kv_heads = 3},
                         {plain(0, 40), plain(50, 1)});
    batch.head_to_kv = {2, 0, 2, 0, 2};
    ASSERT_NO_FATAL_FAILURE(expect_correct(device, batch));
  }
}

// More heads per KV head than one group has.
TEST(CudaAttention, many_heads) {
  DeviceAttention device;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    AttentionBatch batch({.dtype = dtype, .n_heads = 100, .n_kv_heads = 1, .head_dim = 16},
                         {plain(27, 1), plain(30, 6)});
    ASSERT_NO_FATAL_FAILURE(expect_correct(device, batch));
  }
}

// The largest score far above the others, and scores that differ by more than exp can express.
TEST(CudaAttention, extreme_scores_stay_finite) {
  DeviceAttention device;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const float softcap : {0.0F, 30.0F}) {
      AttentionBatch batch(
          {.dtype = dtype, .n_heads = 2, .scale = 100.0F, .softcap = softcap, .with_sinks = true},
          {plain(0, 100)});
      ASSERT_NO_FATAL_FAILURE(expect_correct(device, batch));
    }
  }
}

// A lone long sequence is split, and merged by a second kernel; among many it is not.
TEST(CudaAttention, splits_of_long_contexts) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const int64_t group : {1, 4}) {
      const AttentionDims dims{.dtype = dtype,
                               .n_heads = group,
                               .head_dim = 64,
                               .scale = 0.125F,
                               .with_sinks = true,
                               .partial = group == 4};
      AttentionBatch alone(dims, {plain(3000, 1)});
      std::vector<AttentionRequest> many{plain(3000, 1)};
      for (int64_t i = 0; i < 299; ++i) many.push_back(plain(i % 3, 1));
      AttentionBatch crowd(dims, many);
      DeviceAttention device;
      ASSERT_NO_FATAL_FAILURE(expect_correct(device, alone));
      EXPECT_EQ(device.queue().n_calls(), 2);
      ASSERT_NO_FATAL_FAILURE(expect_correct(device, crowd));
      EXPECT_EQ(device.queue().n_calls(), 3);
    }
  }
}

// One long context among many short ones is shared out, though the short ones fill the device.
TEST(CudaAttention, a_long_context_among_short_ones) {
  std::vector<AttentionRequest> requests{plain(20'000, 1)};
  for (int64_t i = 0; i < 270; ++i) requests.push_back(plain(i % 3, 1));
  AttentionBatch batch({.dtype = DType::BF16, .n_heads = 4, .n_kv_heads = 1}, requests);
  DeviceAttention device;
  ASSERT_NO_FATAL_FAILURE(expect_correct(device, batch));
  EXPECT_EQ(device.queue().n_calls(), 2);
}

// Calls of decode steps are byte-equal until the context passes a power of two.
TEST(CudaAttention, decode_steps_replay) {
  const AttentionDims dims{
      .dtype = DType::BF16, .n_heads = 4, .n_kv_heads = 1, .head_dim = 64, .scale = 0.125F};
  DeviceAttention device;
  // The cache is the last step's; its steps before see fewer of its keys.
  AttentionBatch cache(dims, {plain(540, 1), plain(100, 1)});
  const DeviceAttention::Inputs inputs(cache.args());
  for (int64_t step = 0; step < 4; ++step) {
    AttentionBatch batch(dims, {plain(540, 1), plain(100, 1)});
    cpu::AttentionArgs args = batch.args();
    std::vector<AttentionSequence> sequences(args.sequences.begin(), args.sequences.end());
    sequences[0].blocks = sequences[0].blocks.first(sequences[0].blocks.size() - 1 + (step == 3));
    args.sequences = sequences;
    device.queue().section(7, [&] { device.attend(args, inputs); });
  }
  EXPECT_EQ(device.queue().stats().captures, 1);
  EXPECT_EQ(device.queue().stats().recaptures, 0);
  device.fetch(device.out(), cache.out());
  cache.expect_equal("cuda", cache.out(), {}, 1.0, weight_rounding(cache.dims()));
}

TEST(CudaAttention, too_large_a_head_is_said) {
  DeviceAttention device;
  AttentionBatch batch({.head_dim = 648}, {plain(0, 1)});
  EXPECT_THROW(device.run(batch.args()), ConfigError);
}

}  // namespace
}  // namespace testbed::cuda
