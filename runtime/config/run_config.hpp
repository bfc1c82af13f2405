// RunConfig: what the command line asks for, as plain data. Defaults here are the program's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/weight_format.hpp"
#include "parallel/comm/injection.hpp"
#include "parallel/parallel_options.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed {

struct ParallelConfig {
  int tp = 1;
  int pp = 1;
  int cp = 1;
  std::optional<int> dp;  // inferred from the world size when not given
  int ep = 1;
  std::optional<int> microbatches;  // default: min(pp, what can be split)
  int virtual_stages = 1;
  CpPlacement cp_placement = CpPlacement::zigzag;
  ExpertExchange expert_exchange = ExpertExchange::automatic;
  TpComm tp_comm = TpComm::all_reduce;
  bool operator==(const ParallelConfig&) const = default;
};

enum class DeviceChoice : uint8_t { automatic, cuda, cpu, sim };

// The cluster that is simulated, or that a real run is held against.
struct ClusterConfig {
  std::optional<std::string> name;       // a preset of configs/clusters, or a TOML file
  std::optional<double> link_gb_s;       // overrides its links' line rate, one direction
  std::optional<double> link_us;         // overrides their latency per step
  std::optional<std::string> algorithm;  // of every all-reduce; the fastest when not given
  bool operator==(const ClusterConfig&) const = default;
};
// The cluster that a simulation runs on.
inline std::string cluster_name(const ClusterConfig& cluster) {
  return cluster.name.value_or("dgx-h100");
}
enum class CheckMode : uint8_t { off, layers, full };

// Synthetic requests (batch, prompt_tokens), or real ones: prompt, prompt_ids or prompts_file.
struct WorkloadConfig {
  int64_t batch = 1;
  int64_t prompt_tokens = 512;
  int64_t gen_tokens = 32;
  int64_t context = 0;  // tokens taken as cached already, in front of the prompt (synthetic KV)
  std::optional<std::string> prompt;
  std::vector<std::vector<int32_t>> prompt_ids;
  std::optional<std::string> prompts_file;
  bool is_synthetic() const { return !prompt && prompt_ids.empty() && !prompts_file; }
  bool operator==(const WorkloadConfig&) const = default;
};

struct SamplingConfig {
  uint64_t seed = 0;         // of random weights, random prompts and sampling
  double temperature = 0.0;  // 0 = greedy
  double top_p = 1.0;        // in (0, 1]
  bool ignore_eos = false;
  bool operator==(const SamplingConfig&) const = default;
};

// Paths; "-" is standard output.
struct OutputConfig {
  std::optional<std::string> json;
  std::optional<std::string> csv;
  std::optional<std::string> trace;
  std::optional<std::string> logits;
  bool quiet = false;
  // Standard output carries one of the outputs, so everything else goes to standard error.
  bool stdout_is_taken() const { return json == "-" || csv == "-" || trace == "-"; }
  bool operator==(const OutputConfig&) const = default;
};

struct RunConfig {
  std::string model;                   // as given: preset, folder or .gguf file
  std::optional<std::string> weights;  // a path, or "random"; default: the model's own files, or
                                       // random for a preset
  std::optional<int64_t> layers;       // keep the first N layers
  ParallelConfig parallel;
  DeviceChoice device = DeviceChoice::automatic;
  Layout layout = Layout::automatic;
  bool cuda_graphs = true;        // decode steps of GPUs are captured and replayed
  bool allow_shared_gpu = false;  // several ranks may use one GPU
  bool dram_counters = false;     // of GPUs, by CUPTI, in one generation more
  ClusterConfig cluster;
  WorkloadConfig workload;
  std::optional<WeightFormat> weight_format;  // as stored when not given
  DType compute_dtype = DType::BF16;          // or F32
  SamplingConfig sampling;
  int warmup = 2;
  int repeats = 5;
  CheckMode check = CheckMode::layers;
  OutputConfig output;
  std::vector<Injection> inject;
  double timeout_s = 120;
  std::optional<int> threads;              // per rank; by affinity when not given
  int64_t kv_block_size = 16;              // tokens
  std::optional<int64_t> max_step_tokens;  // prompt tokens of a step; 2048 per cp rank if not given
  bool deterministic = false;  // only reductions of a fixed order; repeats are held to it
  bool operator==(const RunConfig&) const = default;
};

// What --weight-dtype asked for: "auto", "bf16", "f32", "int8", "int4", "fp8".
std::string_view weight_dtype_name(const std::optional<WeightFormat>& format);

// A stable JSON text of everything that decides what is run and measured (output paths and
// --quiet do not): equal texts mean equal configurations. The record's config_hash is over it.
std::string canonical_text(const RunConfig& run, const ModelConfig& model);

}  // namespace testbed
