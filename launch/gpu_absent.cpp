#include "kernels/base/errors.hpp"
#include "launch/gpu.hpp"

namespace testbed {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError(
      "this build has no CUDA device (-DTESTBED_CUDA=ON builds it): --device cpu runs on the "
      "processor, --device sim simulates");
}

}  // namespace

int n_visible_gpus() { return 0; }
std::optional<RunOutcome> run_on_gpu(MpiWorld& /*world*/,
                                     const RunConfig& /*config*/,
                                     const RunInputs& /*inputs*/) {
  refuse();
}
int probe_on_gpu(MpiWorld& /*world*/, const ProbeConfig& /*config*/) { refuse(); }
int accept_on_gpu(MpiWorld& /*world*/,
                  const AcceptConfig& /*config*/,
                  const AcceptanceProfile& /*profile*/,
                  const AcceptWork& /*work*/) {
  refuse();
}

}  // namespace testbed
