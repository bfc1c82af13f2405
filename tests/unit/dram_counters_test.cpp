// DRAM's bytes by CUPTI, on a stand-in that wants each call in its turn: what they are, that every
// failure is told with the call and its code, and that all is given back.
#include "kernels/cuda/dram_counters.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace testbed {
namespace {

using testing::HasSubstr;

const DramCounters::Libraries stand_in{TESTBED_CUPTI_STAND_IN, TESTBED_CUPTI_STAND_IN};

int n_live() {
  void* library = dlopen(TESTBED_CUPTI_STAND_IN, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<int (*)()>(dlsym(library, "stand_in_live"))();
}

// The error of two stretches; "": none.
std::string failure(const DramCounters::Libraries& libraries = stand_in) {
  try {
    DramCounters dram(3, libraries);
    for (int i = 0; i < 2; ++i) {
      dram.begin();
      dram.end();
    }
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}

TEST(DramCounters, say_what_each_stretch_moved) {
  DramCounters dram(3, stand_in);
  int64_t first = 0;
  for (int i = 0; i < 2; ++i) {
    dram.begin();
    const DramBytes bytes = dram.end();
    if (i == 0) first = bytes.read;
    EXPECT_GT(bytes.read, 1'000'000'000'000);
    EXPECT_EQ(bytes.read, first + i);
    EXPECT_EQ(bytes.written, 5 * (bytes.read - 1'000'000'000'000));
  }
}

TEST(DramCounters, every_failure_names_its_call) {
  for (const std::string call : {"cuptiProfilerInitialize",
                                 "cuptiDeviceGetChipName",
                                 "cuptiProfilerHostInitialize",
                                 "cuptiProfilerHostConfigAddMetrics",
                                 "cuptiProfilerHostGetConfigImageSize",
                                 "cuptiProfilerHostGetConfigImage",
                                 "cuptiProfilerHostGetNumOfPasses",
                                 "cuptiRangeProfilerEnable",
                                 "cuptiRangeProfilerGetCounterDataSize",
                                 "cuptiRangeProfilerCounterDataImageInitialize",
                                 "cuptiRangeProfilerSetConfig",
                                 "cuptiRangeProfilerStart",
                                 "cuptiRangeProfilerPushRange",
                                 "cuptiRangeProfilerPopRange",
                                 "cuptiRangeProfilerStop",
                                 "cuptiRangeProfilerDecodeData",
                                 "cuptiProfilerHostEvaluateToGpuValues"}) {
    setenv("STAND_IN_FAILS", call.c_str(), 1);
    EXPECT_EQ(failure(), call + ": CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (code 35)");
    EXPECT_EQ(n_live(), 0) << call;
  }
  unsetenv("STAND_IN_FAILS");
  EXPECT_EQ(failure(), "");
  EXPECT_EQ(n_live(), 0);
}

TEST(DramCounters, of_several_passes_are_none) {
  setenv("STAND_IN_PASSES", "2", 1);
  EXPECT_EQ(failure(), "CUPTI: DRAM's counters take 2 passes here");
  unsetenv("STAND_IN_PASSES");
}

TEST(DramCounters, a_library_that_is_not_there_is_named) {
  EXPECT_THAT(failure({"libno_cupti.so", TESTBED_CUPTI_STAND_IN}), HasSubstr("libno_cupti.so"));
  EXPECT_THAT(failure({TESTBED_CUPTI_STAND_IN, "libno_driver.so"}), HasSubstr("libno_driver.so"));
}

}  // namespace
}  // namespace testbed
