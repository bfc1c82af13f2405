// Groups of options that several commands share, each over the fields it sets; what it is given
// must outlive the parser.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/command_line_parser.hpp"

namespace testbed {

void add_model_option(OptionParser& parser, std::string& model);
void add_layers_option(OptionParser& parser, std::optional<int64_t>& layers);
void add_weights_option(OptionParser& parser, std::optional<std::string>& weights);

// --tp --pp --cp --dp --ep
void add_split_options(OptionParser& parser, ParallelConfig& parallel, const char* dp_help);
// --cp-layout --expert-exchange --tp-comm
void add_exchange_options(OptionParser& parser, ParallelConfig& parallel);
// --microbatches --virtual-stages
void add_pipeline_options(OptionParser& parser, ParallelConfig& parallel);

void add_device_option(OptionParser& parser, DeviceChoice& device);
void add_shared_gpu_option(OptionParser& parser, bool& allow_shared_gpu);
// --layout --allow-shared-gpu
void add_layout_options(OptionParser& parser, Layout& layout, bool& allow_shared_gpu);
void add_threads_option(OptionParser& parser, std::optional<int>& threads);
void add_cluster_option(OptionParser& parser, std::optional<std::string>& cluster);
void add_link_options(OptionParser& parser, ClusterConfig& cluster);
void add_algorithm_option(OptionParser& parser, ClusterConfig& cluster);

void add_gen_tokens_option(OptionParser& parser, int64_t& gen_tokens);
void add_kv_block_option(OptionParser& parser, int64_t& kv_block_size);
void add_step_tokens_option(OptionParser& parser, std::optional<int64_t>& max_step_tokens);

void add_compute_dtype_option(OptionParser& parser, DType& compute_dtype);
// --seed --temperature --top-p --ignore-eos
void add_sampling_options(OptionParser& parser, SamplingConfig& sampling);

// --warmup --repeats --check --inject
void add_run_options(OptionParser& parser, RunConfig& run);
void add_inject_option(OptionParser& parser, std::vector<Injection>& inject);
void add_deterministic_option(OptionParser& parser, bool& deterministic);
// A list of stages of an acceptance, of those that `names` has.
void add_stage_option(OptionParser& parser,
                      const std::string& help,
                      const std::vector<std::string_view>& names,
                      std::vector<std::string>& stages);
void add_timeout_option(OptionParser& parser, double& timeout_s);

// A path; "-" is standard output.
void add_output_option(OptionParser& parser,
                       const char* name,
                       const char* help,
                       std::optional<std::string>& path);
void add_quiet_option(OptionParser& parser, bool& quiet);

// The largest batch that an option takes.
inline constexpr int64_t max_batch = 1 << 24;

}  // namespace testbed
