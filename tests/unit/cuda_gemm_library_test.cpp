// Gemm over the stand-in of cuBLASLt: what is asked of the library and how often, and what its
// refusals become.
#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "kernels/base/errors.hpp"
#include "tests/cuda_emulation/emulation.hpp"
#include "tests/unit/cuda_gemm_support.hpp"

namespace testbed::cuda {
namespace {

int64_t calls(const std::string& name) {
  const auto counts = emulation::call_counts();
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}
int64_t heuristics() { return calls("cublasLtMatmulAlgoGetHeuristic"); }
int64_t products() { return calls("cublasLtMatmul"); }

TEST(CudaGemm, heuristics_are_asked_once_per_kind_of_product) {
  Queue queue;
  Gemm gemm(queue);
  const Operands first(4, 8, 16);
  const Operands second(4, 8, 16);
  const Operands more_rows(5, 8, 16);
  const int64_t before = heuristics();
  const int64_t products_before = products();
  for (const Operands* o : {&first, &second, &first}) gemm.linear(o->x, o->w, {}, o->y);
  EXPECT_EQ(heuristics() - before, 1);
  EXPECT_EQ(products() - products_before, 3);
  gemm.linear(more_rows.x, more_rows.w, {}, more_rows.y);
  EXPECT_EQ(heuristics() - before, 2);
  // Row 1 of a y of 8 bf16 starts on 16 bytes, of an x of 20 on 8 only.
  const Operands narrow(4, 8, 20);
  gemm.linear(narrow.x.view().rows(0, 3), narrow.w, {}, narrow.y.view().rows(0, 3));
  EXPECT_EQ(heuristics() - before, 3);
  gemm.linear(narrow.x.view().rows(1, 3), narrow.w, {}, narrow.y.view().rows(1, 3));
  EXPECT_EQ(heuristics() - before, 4);
  gemm.linear(Tensor(DType::BF16, {0, 16}), first.w, {}, Tensor(DType::BF16, {0, 8}));
  EXPECT_EQ(heuristics() - before, 4);
  queue.synchronize();
}

TEST(CudaGemm, replays_and_other_scales_ask_nothing) {
  Queue queue;
  Gemm gemm(queue);
  const Operands o(4, 8, 16);
  gemm.linear(o.x, o.w, {}, o.y);
  const int64_t asked = heuristics();
  for (int i = 0; i < 4; ++i) queue.section(1, [&] { gemm.linear(o.x, o.w, {}, o.y); });
  EXPECT_EQ(queue.stats().replays, 2);
  EXPECT_EQ(heuristics(), asked);

  // The scales are the call's, not the plan's.
  const Tensor bits = device_array(Fp8Values(16 * 32, 1).bits);
  const Tensor y = unwritten(DType::F32, {4, 16});
  for (const float scale : {0.5F, 0.375F}) {
    const Tensor scales = device_array<float>({scale});
    const auto* on_device = static_cast<const float*>(scales.data());
    gemm.linear_fp8({bits.data(), 4, 32, on_device}, {bits.data(), 16, 32, on_device}, y);
    queue.synchronize();
  }
  EXPECT_EQ(heuristics() - asked, 1);
}

// What linear_fp8 throws for [4, k] and [16, k].
template <typename Error>
std::string fp8_error(int64_t k) {
  Queue queue;
  Gemm gemm(queue);
  const Tensor bits = device_array(Fp8Values(16 * k, 1).bits);
  const Tensor scale = device_array<float>({1.0F});
  const auto* one = static_cast<const float*>(scale.data());
  try {
    gemm.linear_fp8(
        {bits.data(), 4, k, one}, {bits.data(), 16, k, one}, unwritten(DType::F32, {4, 16}));
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

// In a process of its own: a device keeps its architecture.
TEST(CudaGemmDeathTest, fp8_is_refused_before_sm_89) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto refuse = [] {
    setenv("TESTBED_EMULATED_SM", "80", 1);
    std::fputs(fp8_error<ConfigError>(32).c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(refuse(),
              testing::ExitedWithCode(0),
              "^fp8 needs a GPU of compute capability 8.9 or more; this one has 8.0$");
}

TEST(CudaGemm, sizes_that_the_library_does_not_take_are_an_error) {
  EXPECT_EQ(
      fp8_error<DeviceError>(24),
      "cublasLtMatmulAlgoGetHeuristic: the requested functionality is not supported (code 15)");
}

TEST(CudaGemm, every_call_is_checked) {
  for (const std::string name : {"cublasLtCreate",
                                 "cublasLtMatrixLayoutInit",
                                 "cublasLtMatmulDescInit",
                                 "cublasLtMatmulDescSetAttribute",
                                 "cublasLtMatmulPreferenceInit",
                                 "cublasLtMatmulPreferenceSetAttribute",
                                 "cublasLtMatmulAlgoGetHeuristic",
                                 "cublasLtMatmul"}) {
    Queue queue;
    std::optional<Gemm> gemm;
    const Operands o(4, 8, 16);
    emulation::set_faults(name + ":1");
    try {
      gemm.emplace(queue);
      gemm->linear(o.x, o.w, {}, o.y);
      ADD_FAILURE() << name << " failed unnoticed";
    } catch (const DeviceError& error) {
      EXPECT_EQ(std::string(error.what()), name + ": an internal operation failed (code 14)");
    }
    emulation::set_faults("");
    // Nothing half-made is kept.
    if (!gemm) gemm.emplace(queue);
    check_linear(*gemm, queue, {4, 8, 16}, DType::BF16, DType::F32, false);
  }
}

TEST(CudaGemm, destroying_the_handle_says_its_failure) {
  Queue queue;
  std::optional<Gemm> gemm(std::in_place, queue);
  emulation::set_faults("cublasLtDestroy:1");
  testing::internal::CaptureStderr();
  gemm.reset();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "testbed: cublasLtDestroy: an internal operation failed (code 14)\n");
}

}  // namespace
}  // namespace testbed::cuda
