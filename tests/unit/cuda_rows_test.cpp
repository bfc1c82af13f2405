// Rows looked up, copied and summed on the device: bit for bit, and sums against the CPU's.
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "kernels/cpu/rows.hpp"
#include "tests/unit/cuda_rows_support.hpp"

namespace testbed::cuda {
namespace {

const std::vector<int64_t> row_widths = {1, 3, 8, 20, 64, 1030};

TEST(CudaRows, embed_takes_the_rows_that_this_shard_holds) {
  Queue queue;
  for (const DType table_dtype : dtypes) {
    for_layouts([&](DType dtype, int64_t shift) {
      for (const int64_t d : row_widths) {
        const std::vector<int32_t> ids = {10, 13, 9, 14, 10, 12, 2000000000, 0};
        const Tensor table = random(table_dtype, {4, d}, 1);
        const auto m = static_cast<int64_t>(ids.size());
        Tensor want(dtype, {m, d});
        for (int64_t i = 0; i < m * d; ++i) {
          const int64_t row = ids[static_cast<size_t>(i / d)] - 10;
          set(want, i, row >= 0 && row < 4 ? at(table, row * d + i % d) : 0.0);
        }
        const OnDevice out(random(dtype, {m, d}, 2), shift);
        embed(queue, ids, OnDevice(table, shift), 10, out);
        EXPECT_TRUE(same_bits(out.download(queue), want)) << "d " << d;
      }
    });
  }
}

TEST(CudaRows, gather_rows_copies_bits_and_minus_one_gives_zeros) {
  Queue queue;
  for_layouts([&](DType dtype, int64_t shift) {
    for (const int64_t d : row_widths) {
      const std::vector<int64_t> rows = {4, -1, 0, 4, 3, 1, -1, 2};
      const Tensor x = random(dtype, {5, d}, 1);
      set(x, 0, nan);
      Tensor want(dtype, {8, d});
      cpu::gather_rows(x, rows, want, pool());
      const OnDevice on_device(x, shift);
      const OnDevice out(random(dtype, {8, d}, 2), shift);
      gather_rows(queue, on_device, rows, out);
      EXPECT_TRUE(same_bits(out.download(queue), want)) << "d " << d;
    }
  });
}

// More rows than a grid has in its second dimension.
TEST(CudaRows, many_narrow_rows_are_taken_in_turns) {
  Queue queue;
  const int64_t turn = int64_t{65535} * 128;
  const int64_t m = turn + 5;
  const Tensor x(DType::F32, {2, 1});
  x.as<float>()[1] = 1.0F;
  std::vector<int64_t> rows(static_cast<size_t>(m), 0);
  for (const int64_t i : {turn, m - 1}) rows[static_cast<size_t>(i)] = 1;
  const OnDevice on_device(x);
  const OnDevice out(Tensor(DType::F32, {m, 1}));
  gather_rows(queue, on_device, rows, out);
  const Tensor got = out.download(queue);
  EXPECT_EQ(std::accumulate(got.as<float>(), got.as<float>() + m, 0.0F), 2.0F);
  EXPECT_EQ(got.as<float>()[turn] + got.as<float>()[m - 1], 2.0F);
}

TEST(CudaRows, copy_columns_repeats_rows_and_leaves_other_columns) {
  Queue queue;
  struct Case {
    int64_t x_width, x_column, n, out_width, out_column;
  };
  for_layouts([&](DType dtype, int64_t shift) {
    for (const Case c : {Case{64, 16, 32, 96, 64},
                         {64, 3, 32, 96, 64},
                         {24, 8, 7, 16, 8},
                         {576, 512, 64, 192, 128},
                         {5, 0, 5, 5, 0}}) {
      for (const int64_t repeat : {1, 3}) {
        const Tensor x = random(dtype, {2, 2, c.x_width}, 1);
        const Tensor want = random(dtype, {4 * repeat, c.out_width}, 2);
        const OnDevice on_device(x, shift);
        const OnDevice out(want, shift);
        copy_columns(queue, on_device, c.x_column, c.n, out, c.out_column);
        cpu::copy_columns(x, c.x_column, c.n, want, c.out_column, pool());
        EXPECT_TRUE(same_bits(out.download(queue), want)) << "from " << c.x_column;
      }
    }
  });
}

// Sums of n terms: n roundings by fma on the device, 2 n in the reference.
TEST(CudaRows, combine_rows_sums_in_order) {
  Queue queue;
  const std::vector<int64_t> first = {0, 3, 3, 4, 13};
  const std::vector<int64_t> rows = {4, 0, 2, 1, 5, 0, 1, 2, 3, 4, 5, 0, 3};
  std::vector<float> weights(rows.size());
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.3F * static_cast<float>(i) - 1.0F;
  const WeightedRows sums{first, rows, weights};
  for_layouts([&](DType dtype, int64_t shift) {
    for (const int64_t d : row_widths) {
      const Tensor x = random(dtype, {6, d}, 1);
      Tensor want(dtype, {4, d});
      cpu::combine_rows(x, sums, want, pool(), portable);
      const OnDevice on_device(x, shift);
      const OnDevice out(random(dtype, {4, d}, 2), shift);
      combine_rows(queue, on_device, sums, out);
      const Tensor got = out.download(queue);
      for (int64_t i = 0; i < 4 * d; ++i) {
        const auto t = static_cast<size_t>(i / d);
        double sizes = 0;
        for (auto k = static_cast<size_t>(first[t]); k < static_cast<size_t>(first[t + 1]); ++k) {
          sizes += std::abs(weights[k] * at(x, rows[k] * d + i % d));
        }
        const auto n = static_cast<double>(first[t + 1] - first[t]);
        expect_close(got, want, i, sizes * (roundings(n) + roundings(2 * n)));
      }
    }
  });
}

struct Cache {
  OnDevice k;
  OnDevice v;
  KvView view;
  Cache(TensorView host_k, TensorView host_v, KvView host, int64_t shift)
      : k(host_k, shift), v(host_v, shift), view(host) {
    view.k = k.view().data();
    view.v = host.v == nullptr ? nullptr : v.view().data();
  }
};

KvView view_of(TensorView k, TensorView v, bool with_v) {
  return {.k = k.data(),
          .v = with_v ? v.data() : nullptr,
          .dtype = k.dtype(),
          .n_blocks = k.shape()[0],
          .block_size = k.shape()[2],
          .n_kv_heads = k.shape()[1],
          .head_dim = k.shape()[3],
          .v_dim = v.shape()[3]};
}

struct HeadDims {
  int64_t k;
  int64_t v;
};
const std::vector<HeadDims> head_dims = {{64, 64}, {192, 128}, {80, 80}, {3, 5}, {576, 512}};

TEST(CudaRows, write_kv_writes_the_slots_and_nothing_else) {
  Queue queue;
  const std::vector<int64_t> slots = {5, -1, 0, 19, 7, -1, 8};
  const auto m = static_cast<int64_t>(slots.size());
  for_layouts([&](DType dtype, int64_t shift) {
    for (const HeadDims dims : head_dims) {
      for (const bool with_v : {true, false}) {
        const Tensor k = random(dtype, {m, 3, dims.k}, 1);
        const Tensor v = with_v ? random(dtype, {m, 3, dims.v}, 2) : Tensor();
        const Tensor cache_k = random(dtype, {5, 3, 4, dims.k}, 3);
        const Tensor cache_v = random(dtype, {5, 3, 4, dims.v}, 4);
        const KvView host = view_of(cache_k, cache_v, with_v);
        const Cache cache(cache_k, cache_v, host, shift);
        const OnDevice device_k(k, shift);
        const OnDevice device_v(v, shift);
        write_kv(queue, device_k, with_v ? device_v.view() : TensorView(), cache.view, slots);
        cpu::write_kv(k, v, host, slots, pool());
        EXPECT_TRUE(same_bits(cache.k.download(queue), cache_k));
        EXPECT_TRUE(same_bits(cache.v.download(queue), cache_v));
      }
    }
  });
}

TEST(CudaRows, gather_blocks_copies_blocks) {
  Queue queue;
  const std::vector<int32_t> blocks = {4, 0, 4, 2};
  for_layouts([&](DType dtype, int64_t shift) {
    for (const HeadDims dims : head_dims) {
      for (const bool with_v : {true, false}) {
        const Tensor k = random(dtype, {5, 3, 4, dims.k}, 1);
        const Tensor v = random(dtype, {5, 3, 4, dims.v}, 2);
        const Tensor to_k = random(dtype, {6, 3, 4, dims.k}, 3);
        const Tensor to_v = random(dtype, {6, 3, 4, dims.v}, 4);
        const Cache from(k, v, view_of(k, v, with_v), shift);
        const Cache to(to_k, to_v, view_of(to_k, to_v, with_v), shift);
        gather_blocks(queue, from.view, blocks, to.view);
        cpu::gather_blocks(view_of(k, v, with_v), blocks, view_of(to_k, to_v, with_v), pool());
        EXPECT_TRUE(same_bits(to.k.download(queue), to_k));
        EXPECT_TRUE(same_bits(to.v.download(queue), to_v));
      }
    }
  });
}

// A decode step's calls are equal from step to step; what changes is in Arguments.
TEST(CudaRows, a_replayed_step_follows_its_ids_positions_and_slots) {
  Queue queue;
  constexpr int64_t m = 3;
  const Tensor table = random(DType::BF16, {8, 64}, 1);
  const OnDevice device_table(table);
  const OnDevice x(Tensor(DType::BF16, {m, 64}));
  const OnDevice out(Tensor(DType::BF16, {m, 64}));
  const Tensor empty_cache(DType::BF16, {5, 1, 4, 64});
  const Cache cache(empty_cache, empty_cache, view_of(empty_cache, empty_cache, false), 0);
  const std::vector<double> inv_freq(32, 0.25);
  for (int32_t step = 0; step < 6; ++step) {
    const std::vector<int32_t> ids = {step, 7 - step, 2};
    const std::vector<int64_t> positions = {step, 10 + step, 0};
    const std::vector<int64_t> slots = {step, -1, 19 - step};
    const std::vector<int64_t> rows = {2, -1, step % 3};
    queue.section(1, [&] {
      embed(queue, ids, device_table, 0, x);
      rope(queue, TensorView(x).reshaped({m, 1, 64}), positions, {inv_freq, 1.0, false});
      write_kv(queue, TensorView(x).reshaped({m, 1, 64}), {}, cache.view, slots);
      scale(queue, x, 2.0F);
      gather_rows(queue, x, rows, out);
    });
    Tensor want(DType::BF16, {m, 1, 64});
    cpu::gather_rows(table, std::vector<int64_t>(ids.begin(), ids.end()), want, pool());
    cpu::rope(want, positions, {inv_freq, 1.0, false}, pool(), portable);
    const Tensor scaled = cpu::copy(want);
    cpu::scale(scaled, 2.0F, pool(), portable);
    Tensor gathered(DType::BF16, {m, 64});
    cpu::gather_rows(scaled, rows, gathered, pool());
    const Tensor got = out.download(queue);
    const Tensor written = cache.k.download(queue);
    for (int64_t i = 0; i < m * 64; ++i) {
      expect_close(got, gathered, i, 8 * roundings(6));
    }
    for (int64_t i = 0; i < 64; ++i) {
      expect_close(written.view().reshaped({20, 64}).rows(slots[2], 1),
                   want.view().rows(2, 1),
                   i,
                   4 * roundings(6));
    }
  }
  EXPECT_EQ(queue.stats().captures, 1);
  EXPECT_EQ(queue.stats().recaptures, 0);
  EXPECT_GE(queue.stats().replays, 4);
}

TEST(CudaRows, no_rows_are_no_work) {
  Queue queue;
  const OnDevice some(random(DType::F32, {2, 8}, 1));
  const int64_t before = queue.n_calls();
  const TensorView none = some.view().rows(0, 0);
  embed(queue, {}, some, 0, none);
  gather_rows(queue, some, {}, none);
  copy_columns(queue, none, 0, 8, none, 0);
  const std::vector<int64_t> first = {0};
  combine_rows(queue, some, {first, {}, {}}, none);
  rope(queue, none.reshaped({0, 2, 4}), {}, {std::vector<double>{1.0, 0.5}, 1.0, false});
  write_kv(queue, none, none, {.v = some.view().data()}, {});
  EXPECT_EQ(queue.n_calls(), before);
}

}  // namespace
}  // namespace testbed::cuda
