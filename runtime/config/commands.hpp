// What each command of the program is asked for, as plain data. `run` is a RunConfig.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/config/run_config.hpp"

namespace testbed {

// --help or --version was asked for: print and exit 0.
struct InfoText {
  std::string text;  // ends in a newline
};

// Every combination of the lists is a point; the rest is as in `base`.
struct SweepConfig {
  enum class Best : uint8_t { none, tpot, throughput };
  RunConfig base;  // its output is the sweep's
  std::vector<int> tp = {1};
  std::vector<int> pp = {1};
  std::vector<int> cp = {1};
  std::vector<int> dp = {1};
  std::vector<int> ep = {1};          // empty with `best`: those that all_splits() tries
  std::vector<std::string> clusters;  // at least one
  std::vector<int64_t> batch = {1};
  std::vector<int64_t> context = {0};
  std::vector<int64_t> prompt_tokens = {512};
  Best best = Best::none;  // not none: all legal splits that fit are searched
};

// Two records, side by side.
struct CompareConfig {
  std::string a;
  std::string b;
  OutputConfig output;
};

// Closed forms, no devices.
struct PlanConfig {
  std::string model;  // empty with `claims` only
  std::optional<int64_t> layers;
  std::string cluster = "dgx-h100";   // preset or file
  std::optional<std::string> device;  // preset or file: in the place of the cluster's
  ParallelConfig parallel;
  int64_t batch = 1;
  int64_t context = 8192;
  int64_t prompt_tokens = 512;
  std::optional<WeightFormat> weight_format;  // as stored when not given
  std::optional<std::string> claims;          // write the table of claims to this file
  OutputConfig output;
};

// A machine's own curves: measured, or with `sim` computed.
struct ProbeConfig {
  DeviceChoice device = DeviceChoice::automatic;
  ClusterConfig cluster;
  std::optional<int> threads;
  DType compute_dtype = DType::BF16;
  bool allow_shared_gpu = false;
  int64_t most_bytes = int64_t{1} << 30;  // of a collective
  double timeout_s = 120;
  OutputConfig output;
  std::optional<std::string> toml;        // a device + cluster preset with what was measured
  std::optional<std::string> acceptance;  // an acceptance profile with what was measured
  std::vector<std::string> stages;        // of the acceptance; empty: all that measure
  std::optional<std::string> model;       // of its stage model
};

// Whether a cluster is fit to sign for.
struct AcceptConfig {
  std::string profile;  // of configs/acceptance, or a file; empty: cpu-host for processors
  DeviceChoice device = DeviceChoice::automatic;  // never sim
  Layout layout = Layout::automatic;
  bool allow_shared_gpu = false;
  std::optional<int> threads;
  DType compute_dtype = DType::BF16;
  std::vector<std::string> stages;  // empty: all
  std::optional<std::string> only;  // cases whose "stage/name" contains it
  bool quick = false;               // fewer sizes and repeats
  bool list = false;                // says what would run and how long it takes, and runs nothing
  std::optional<std::string> explain;   // says what a case does, and runs nothing
  std::optional<std::string> baseline;  // the JSON of an earlier acceptance: drift
  std::string model = "smollm2-135m";   // of the stages model, corruption and soak
  std::optional<std::string> weights;
  std::optional<int64_t> layers;
  double ttft_target_ms = 2000.0;  // of goodput
  double tpot_target_ms = 100.0;
  int64_t most_bytes = int64_t{1} << 30;  // of a message or collective; --quick 16 MiB
  int repeats = 5;                        // --quick 3
  double soak_s = 0.0;                    // 0: no soak
  uint64_t seed = 0;
  std::vector<Injection> inject;
  double timeout_s = 120;
  std::string folder = "acceptance";  // --output: where verdict.json, junit.xml, ... are written
  bool quiet = false;
};

using Command = std::
    variant<RunConfig, SweepConfig, CompareConfig, PlanConfig, ProbeConfig, AcceptConfig, InfoText>;

}  // namespace testbed
