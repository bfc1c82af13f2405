#include "runtime/plan/training.hpp"

#include "kernels/base/check.hpp"

namespace testbed::plan {

double zero_bytes_per_parameter(int stage, int64_t n_devices) {
  CHECK(stage >= 0 && stage <= 3 && n_devices >= 1);
  const AdamBytes bytes;
  const auto n = static_cast<double>(n_devices);
  const auto share = [&](int64_t of, int first_stage) {
    return static_cast<double>(of) / (stage >= first_stage ? n : 1.0);
  };
  return share(bytes.optimizer, 1) + share(bytes.gradient, 2) + share(bytes.weight, 3);
}

double zero_saving(int stage, int64_t n_devices) {
  return zero_bytes_per_parameter(0, n_devices) / zero_bytes_per_parameter(stage, n_devices);
}

int64_t zero_traffic_per_parameter(int stage) {
  CHECK(stage >= 0 && stage <= 3);
  return stage == 3 ? 3 : 2;
}

int64_t training_flops_per_token(int64_t n_parameters, bool recompute) {
  return (recompute ? 8 : 6) * n_parameters;
}

}  // namespace testbed::plan
