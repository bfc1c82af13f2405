// Which devices the emulation shows, by its environment: each case in a process of its own.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "tests/unit/cuda_emulation_support.hpp"

namespace testbed::cuda {
namespace {

// Runs `body` in a new process with the variables set; it returns whether all is as expected.
void in_environment(const std::vector<std::pair<const char*, std::string>>& variables,
                    const std::function<bool()>& body) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  unsetenv("CUDA_VISIBLE_DEVICES");
  for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  EXPECT_EXIT(std::exit(body() ? 0 : 1), testing::ExitedWithCode(0), "");
  for (const auto& [name, value] : variables) unsetenv(name);
}

std::string bus_id(int device) {
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), text.size(), device), "cudaDeviceGetPCIBusId");
  return text.data();
}

TEST(DevicesDeathTest, AreEightOfTheirOwnBusAndAsTheEnvironmentSays) {
  in_environment({}, [] {
    int n = 0;
    cudaDeviceProp p;
    return cudaGetDeviceCount(&n) == cudaSuccess && n == 8 && bus_id(0) != bus_id(7) &&
           cudaGetDeviceProperties(&p, 0) == cudaSuccess && p.major == 9 && p.minor == 0 &&
           cudaSetDevice(8) == cudaErrorInvalidDevice;
  });
  in_environment({{"TESTBED_EMULATED_GPUS", "2"},
                  {"TESTBED_EMULATED_SM", "80"},
                  {"TESTBED_EMULATED_GPU_BYTES", "4096"}},
                 [] {
                   int n = 0;
                   int major = 0;
                   size_t free_bytes = 0;
                   size_t total_bytes = 0;
                   cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 1);
                   return cudaGetDeviceCount(&n) == cudaSuccess && n == 2 && major == 8 &&
                          cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess &&
                          free_bytes == 4096 && total_bytes == 4096;
                 });
}

TEST(DevicesDeathTest, AreTheVisibleOnesInTheirOrder) {
  const auto shows = [](const char* visible, const std::vector<std::string>& ids) {
    in_environment({{"CUDA_VISIBLE_DEVICES", visible}}, [&] {
      int n = -1;
      const cudaError_t code = cudaGetDeviceCount(&n);
      if (ids.empty()) return code == cudaErrorNoDevice && n == 0;
      bool good = code == cudaSuccess && n == static_cast<int>(ids.size());
      for (int i = 0; good && i < n; ++i) good = bus_id(i) == ids[static_cast<size_t>(i)];
      return good;
    });
  };
  shows("3,1", {"0000:04:00.0", "0000:02:00.0"});
  shows("2,9,1", {"0000:03:00.0"});  // up to the first that is none
  shows("1,1", {});
  shows("", {});
}

TEST(DevicesDeathTest, WithoutADriverEveryCallSaysSo) {
  in_environment({{"TESTBED_EMULATED_NO_DRIVER", "1"}}, [] {
    int n = -1;
    int version = -1;
    void* p = nullptr;
    return cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver && n == 0 &&
           cudaMalloc(&p, 16) == cudaErrorInsufficientDriver &&
           cudaDriverGetVersion(&version) == cudaSuccess && version == 0 &&
           cudaRuntimeGetVersion(&version) == cudaSuccess && version == CUDART_VERSION;
  });
}

TEST(FaultsDeathTest, AreOfTheEnvironmentAndCallsAreCountedInAFile) {
  const std::string path = testing::TempDir() + "emulation_counts";
  in_environment({{"TESTBED_EMULATION_FAIL", "cudaMalloc:2@1"},
                  {"TESTBED_EMULATION_COUNTS", path},
                  {"OMPI_COMM_WORLD_RANK", "1"}},
                 [] {
                   void* p = nullptr;
                   void* q = nullptr;
                   return cudaMalloc(&p, 16) == cudaSuccess &&
                          cudaMalloc(&q, 16) == cudaErrorMemoryAllocation &&
                          cudaFree(p) == cudaSuccess;
                 });
  std::ifstream file(path + ".1");
  std::string name;
  int64_t count = 0;
  std::map<std::string, int64_t> counts;
  while (file >> name >> count) counts[name] = count;
  EXPECT_EQ(counts["cudaMalloc"], 2);
  EXPECT_EQ(counts["cudaFree"], 1);
  unlink((path + ".1").c_str());
}

}  // namespace
}  // namespace testbed::cuda
