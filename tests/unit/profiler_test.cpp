// Names reach a profiler, nested as they were begun.
#include "kernels/cuda/profiler.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace testbed::cuda {
namespace {

TEST(Profiler, is_told_names_as_they_nest) {
  // Before NVTX's first call: it looks for a profiler once.
  ASSERT_EQ(setenv("NVTX_INJECTION64_PATH", TESTBED_NVTX_STAND_IN, /*overwrite=*/1), 0);
  const Profiler profiler;
  profiler.begin("decode", 7);
  profiler.begin("head", -1);
  profiler.end();
  profiler.begin("attention", 0);
  profiler.end();
  profiler.end();
  void* library = dlopen(TESTBED_NVTX_STAND_IN, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  const auto written = reinterpret_cast<const char* (*)()>(dlsym(library, "nvtx_stand_in_written"));
  ASSERT_NE(written, nullptr);
  EXPECT_STREQ(written(), "testbed:<decode 7<head><attention 0>>");
  dlclose(library);
}

TEST(Profiler, is_not_needed) {
  ASSERT_EQ(unsetenv("NVTX_INJECTION64_PATH"), 0);
  const Profiler profiler;
  profiler.begin("decode", 7);
  profiler.end();
}

}  // namespace
}  // namespace testbed::cuda
