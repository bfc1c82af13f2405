// The emulated twins of inline PTX, against the tables of the PTX ISA 9.0 ("Matrix Fragments for
// mma.m16n8k16 with floating point type", "ldmatrix", "cp.async"), written out here from there.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "kernels/cuda/device_code.cuh"
#include "tests/unit/cuda_emulation_support.hpp"

namespace testbed::cuda {
namespace {

__global__ void multiply(const uint32_t* a, const uint32_t* b, float* d) {
  const unsigned lane = threadIdx.x;
  uint32_t fa[4];
  uint32_t fb[2];
  float fd[4];
  for (unsigned i = 0; i < 4; ++i) fa[i] = a[4 * lane + i];
  for (unsigned i = 0; i < 2; ++i) fb[i] = b[2 * lane + i];
  for (unsigned i = 0; i < 4; ++i) fd[i] = d[4 * lane + i];
  mma_m16n8k16_bf16(fd, fa, fb);
  for (unsigned i = 0; i < 4; ++i) d[4 * lane + i] = fd[i];
}

// rows: 32 rows of 8 elements; out [32 lanes, 4].
template <bool transposed>
__global__ void load_matrices(const uint16_t* rows, uint32_t* out) {
  __shared__ __align__(16) uint16_t shared[32][8];
  for (unsigned i = 0; i < 8; ++i) shared[threadIdx.x][i] = rows[8 * threadIdx.x + i];
  __syncthreads();
  uint32_t r[4];
  if (transposed) {
    ldmatrix_x4_trans(r, shared[threadIdx.x]);
  } else {
    ldmatrix_x4(r, shared[threadIdx.x]);
  }
  for (unsigned j = 0; j < 4; ++j) out[4 * threadIdx.x + j] = r[j];
}

// 16 bytes by each thread, of which those with odd indices are not valid. Waits for all but
// n_pending of two groups: the first is the lower half of the bytes of out.
template <int n_pending>
__global__ void copy(const uint32_t* from, uint32_t* out) {
  auto* shared = dynamic_shared<uint32_t>();
  const unsigned n = 4 * blockDim.x;
  for (unsigned group = 0; group < 2; ++group) {
    const unsigned at = group * n + 4 * threadIdx.x;
    copy_async_16(shared + at, from + at, threadIdx.x % 2 == 0);
    copy_async_commit();
  }
  copy_async_wait<n_pending>();
  __syncthreads();
  for (unsigned i = threadIdx.x; i < 2 * n; i += blockDim.x) out[i] = shared[i];
}
__global__ void copy_to_unaligned(const uint32_t* from) {
  copy_async_16(dynamic_shared<uint32_t>() + 1, from, true);
}

__global__ void look_at_time(int64_t* ns) { *ns = global_time_ns(); }

class Ptx : public EmulationTest {
 protected:
  template <typename... P, typename... A>
  cudaError_t run(void (*kernel)(P...), const LaunchShape& shape, A... arguments) {
    const cudaError_t code = launch_on(stream_.get(), kernel, shape, arguments...);
    return code != cudaSuccess ? code : cudaStreamSynchronize(stream_.get());
  }
  Stream stream_;
};

uint32_t pair(float low, float high) { return pack_bf16x2(low, high); }

TEST_F(Ptx, MmaMultipliesTheFragmentsOfTheDocumentation) {
  // Small whole numbers: exact in bf16, products and sums exact in f32.
  std::array<std::array<float, 16>, 16> a{};
  std::array<std::array<float, 8>, 16> b{};
  std::array<std::array<float, 8>, 16> c{};
  for (size_t i = 0; i < 16; ++i) {
    for (size_t k = 0; k < 16; ++k) a[i][k] = static_cast<float>((i * 7 + k * 3) % 11) - 5.0F;
    for (size_t j = 0; j < 8; ++j) b[i][j] = static_cast<float>((i * 5 + j * 9) % 13) - 6.0F;
    for (size_t j = 0; j < 8; ++j) c[i][j] = static_cast<float>(i * 8 + j);
  }
  // Of a_i: row groupID for i in 0, 1, 4, 5, else groupID + 8; column 2 threadID_in_group + (i &
  // 1),
  // + 8 from i = 4. Of b_i: row 2 threadID_in_group + (i & 1), + 8 from i = 2; column groupID.
  // Of c_i: row groupID for i < 2, else + 8; column 2 threadID_in_group + (i & 1).
  std::vector<uint32_t> fragments_a;
  std::vector<uint32_t> fragments_b;
  std::vector<float> fragments_d;
  for (size_t lane = 0; lane < 32; ++lane) {
    const size_t group_id = lane / 4;
    const size_t thread_id = lane % 4;
    const auto a_at = [&](size_t i) {
      const bool upper = i < 2 || (i >= 4 && i < 6);
      return a[group_id + (upper ? 0 : 8)][thread_id * 2 + (i & 1) + (i < 4 ? 0 : 8)];
    };
    const auto b_at = [&](size_t i) {
      return b[thread_id * 2 + (i & 1) + (i < 2 ? 0 : 8)][group_id];
    };
    for (size_t i = 0; i < 8; i += 2) fragments_a.push_back(pair(a_at(i), a_at(i + 1)));
    for (size_t i = 0; i < 4; i += 2) fragments_b.push_back(pair(b_at(i), b_at(i + 1)));
    for (size_t i = 0; i < 4; ++i) {
      fragments_d.push_back(c[group_id + (i < 2 ? 0 : 8)][thread_id * 2 + (i & 1)]);
    }
  }
  const DeviceArray<uint32_t> da(fragments_a);
  const DeviceArray<uint32_t> db(fragments_b);
  const DeviceArray<float> dd(fragments_d);
  ASSERT_EQ(run(&multiply, {1, 32}, da.data(), db.data(), dd.data()), cudaSuccess);
  const std::vector<float> d = dd.get();
  for (size_t lane = 0; lane < 32; ++lane) {
    for (size_t i = 0; i < 4; ++i) {
      const size_t row = lane / 4 + (i < 2 ? 0 : 8);
      const size_t column = lane % 4 * 2 + (i & 1);
      float want = c[row][column];
      for (size_t k = 0; k < 16; ++k) want += a[row][k] * b[k][column];
      EXPECT_EQ(d[4 * lane + i], want) << "lane " << lane << ", d" << i;
    }
  }
}

TEST_F(Ptx, LdmatrixDistributesTheMatricesOfTheDocumentation) {
  std::vector<uint16_t> rows(32 * 8);
  std::iota(rows.begin(), rows.end(), uint16_t{0x100});
  const DeviceArray<uint16_t> in(rows);
  const DeviceArray<uint32_t> out(32 * 4);
  // Thread T holds of each matrix row T / 4, columns 2 (T % 4) and the next, lower half first.
  const auto element = [&](size_t matrix, size_t row, size_t column) -> uint32_t {
    return rows[(8 * matrix + row) * 8 + column];
  };
  ASSERT_EQ(run(&load_matrices<false>, {1, 32}, in.data(), out.data()), cudaSuccess);
  const std::vector<uint32_t> plain = out.get();
  ASSERT_EQ(run(&load_matrices<true>, {1, 32}, in.data(), out.data()), cudaSuccess);
  const std::vector<uint32_t> transposed = out.get();
  for (size_t lane = 0; lane < 32; ++lane) {
    const size_t row = lane / 4;
    const size_t column = 2 * (lane % 4);
    for (size_t j = 0; j < 4; ++j) {
      EXPECT_EQ(plain[4 * lane + j], element(j, row, column) | element(j, row, column + 1) << 16);
      EXPECT_EQ(transposed[4 * lane + j],
                element(j, column, row) | element(j, column + 1, row) << 16);
    }
  }
}

TEST_F(Ptx, AsynchronousCopiesAreThereOnceWaitedFor) {
  constexpr unsigned n_threads = 32;
  std::vector<uint32_t> from(8 * n_threads);
  std::iota(from.begin(), from.end(), 1U);
  const DeviceArray<uint32_t> in(from);
  const DeviceArray<uint32_t> out(from.size());
  const size_t n_bytes = from.size() * sizeof(uint32_t);
  std::vector<uint32_t> want = from;
  for (size_t i = 0; i < want.size(); ++i) {
    if (i / 4 % 2 == 1) want[i] = 0;  // not valid: zeros
  }
  for (const std::string& order : all_orders) {
    emulation::set_order(order);
    ASSERT_EQ(run(&copy<0>, {1, n_threads, n_bytes}, in.data(), out.data()), cudaSuccess);
    EXPECT_EQ(out.get(), want) << order;
  }
  // The second group may be under way still: in one of the orders it is.
  emulation::set_order("forward");
  ASSERT_EQ(run(&copy<1>, {1, n_threads, n_bytes}, in.data(), out.data()), cudaSuccess);
  const std::vector<uint32_t> got = out.get();
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 4 * n_threads, want.begin()));
  EXPECT_EQ(got[4 * n_threads], 0xffffffffU);
}

TEST_F(Ptx, MisalignedCopiesAreReported) {
  const DeviceArray<uint32_t> in(4);
  EXPECT_EQ(run(&copy_to_unaligned, {1, 1, 32}, in.data()), cudaErrorLaunchFailure);
  EXPECT_NE(emulation::kernel_failure().find("misaligned"), std::string::npos);
  emulation::reset_errors();
}

TEST_F(Ptx, GlobalTimeIsInNanoseconds) {
  const auto now = [] {
    using std::chrono::steady_clock;
    return std::chrono::nanoseconds(steady_clock::now().time_since_epoch()).count();
  };
  const DeviceArray<int64_t> time(1);
  const int64_t before = now();
  ASSERT_EQ(run(&look_at_time, {1, 1}, time.data()), cudaSuccess);
  EXPECT_GE(time.get()[0], before);
  EXPECT_LE(time.get()[0], now());
}

TEST_F(Ptx, Bf16IsRoundedToNearestEven) {
  EXPECT_EQ(pack_bf16x2(1.0F, -2.0F), 0xc0003f80U);
  EXPECT_EQ(pack_bf16x2(as_float(0x3f808000U), as_float(0x3f818000U)), 0x3f823f80U);  // ties
  EXPECT_EQ(pack_bf16x2(as_float(0x3f808001U), as_float(0x3f807fffU)), 0x3f803f81U);
  EXPECT_EQ(pack_bf16x2(as_float(0x7f800000U), as_float(0x7f7fffffU)), 0x7f807f80U);
  EXPECT_EQ(pack_bf16x2(std::nanf(""), 0.0F), 0x7fffU);
}

}  // namespace
}  // namespace testbed::cuda
