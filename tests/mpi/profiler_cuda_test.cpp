// What a profiler is told of a run on the emulation: steps, their microbatches, and the pieces of
// the model within, each ended before what it is in.
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "launch/cuda/cuda_rank.hpp"
#include "tests/mpi/fixtures_runs.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace testbed {
namespace {

MpiWorld* world = nullptr;
CudaProcess* process = nullptr;

std::string written() {
  void* library = dlopen(TESTBED_NVTX_STAND_IN, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return "not loaded";
  const auto text = reinterpret_cast<const char* (*)()>(dlsym(library, "nvtx_stand_in_written"));
  return text();
}

// Of "<name" and ">"; -1: an end without a beginning.
int deepest(const std::string& text) {
  int depth = 0;
  int most = 0;
  for (const char c : text) {
    depth += c == '<' ? 1 : c == '>' ? -1 : 0;
    if (depth < 0) return -1;
    most = std::max(most, depth);
  }
  return depth == 0 ? most : -1;
}

TEST(Profiler, is_told_where_a_run_is) {
  const std::string model = "llama3_gqa";
  RunConfig config =
      fixtures::config_of(model, {.mesh = {}, .ways = {}}, fixtures::read_reference(model), "");
  config.output.logits.reset();
  config.workload.prompt_ids = {{1, 2, 3}};
  config.workload.gen_tokens = 3;
  config.device = DeviceChoice::cuda;
  const RunInputs inputs = open_inputs(config, {}, *world->make_control());
  {
    const CudaRank rank(*world, *process, config, inputs);
    run_rank(rank.context());
  }
  const std::string text = written();
  EXPECT_EQ(deepest(text), 3);  // step, microbatch, piece
  EXPECT_NE(text.find("<prefill 0<microbatch 0<token_ids><embedding><other><attention 0><mlp 0>"
                      "<attention 1><mlp 1>"),
            std::string::npos);
  EXPECT_NE(text.find("<decode 1<microbatch 0<token_ids><embedding><other><attention 0>"),
            std::string::npos);
  EXPECT_NE(text.find("<head>>><decode 2<"), std::string::npos);
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  setenv("NVTX_INJECTION64_PATH", TESTBED_NVTX_STAND_IN, /*overwrite=*/1);
  testbed::MpiWorld world;
  ::testing::InitGoogleTest(&argc, argv);
  testbed::CudaProcess process(world, *world.make_control(), {});
  testbed::world = &world;
  testbed::process = &process;
  return testbed::run_all_tests(world);
}
