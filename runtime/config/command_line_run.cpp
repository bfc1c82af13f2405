// `testbed [run]`.
#include <array>

#include "kernels/base/errors.hpp"
#include "runtime/config/command_line_commands.hpp"
#include "runtime/config/command_line_options.hpp"
#include "runtime/config/option_values.hpp"
#include "runtime/config/weight_options.hpp"

namespace testbed {
namespace {

void add_parallel_options(OptionParser& parser, ParallelConfig& parallel) {
  add_split_options(parser, parallel, "Replicas (default: what the processes leave over)");
  add_pipeline_options(parser, parallel);
  add_exchange_options(parser, parallel);
}

void add_device_options(OptionParser& parser, RunConfig& config) {
  add_device_option(parser, config.device);
  parser.value("--cuda-graphs",
               "on|off",
               "Decode steps of GPUs as graphs (default on)",
               [&config](const auto& option, const auto& text) {
                 config.cuda_graphs = choose<bool>(option, text, {{"on", true}, {"off", false}});
               });
  add_cluster_option(parser, config.cluster.name);
  add_link_options(parser, config.cluster);
  add_algorithm_option(parser, config.cluster);
  add_layout_options(parser, config.layout, config.allow_shared_gpu);
  parser.flag("--dram-counters",
              "Bytes that the GPUs' DRAM reads and writes, by CUPTI, in one generation more",
              [&config] { config.dram_counters = true; });
  add_threads_option(parser, config.threads);
}

void add_synthetic_workload(OptionParser& parser, WorkloadConfig& w) {
  parser.integer(
      "--batch", "B", "Equal requests of random tokens (default 1)", 1, max_batch, [&w](int64_t n) {
        w.batch = n;
      });
  parser.integer("--prompt-tokens",
                 "P",
                 "Of each such request (default 512; 1 with --context)",
                 1,
                 max_tokens,
                 [&w](int64_t n) { w.prompt_tokens = n; });
  add_gen_tokens_option(parser, w.gen_tokens);
  parser.integer("--context",
                 "N",
                 "Decode as if N tokens were cached already (synthetic KV, labelled)",
                 1,
                 max_tokens,
                 [&w](int64_t n) { w.context = n; });
}

void add_prompt_options(OptionParser& parser, WorkloadConfig& w) {
  parser.value(
      "--prompt", "TEXT", "One request with this text", [&w](const auto&, const auto& text) {
        if (text.empty()) throw ConfigError("--prompt: the prompt is empty");
        w.prompt = text;
      });
  parser.value(
      "--prompt-ids",
      "1,2,3",
      "One request with these token ids; may repeat",
      [&w](const auto&, const auto& text) { w.prompt_ids.push_back(parse_ids(text)); },
      true);
  parser.value(
      "--prompts",
      "FILE.jsonl",
      R"(Lines {"prompt": "..."} or {"prompt_ids": [...], "gen_tokens": n})",
      [&w](const auto& option, const auto& text) { w.prompts_file = require_text(option, text); });
}

void add_numeric_options(OptionParser& parser, RunConfig& config, WeightOptions& weights) {
  add_weight_options(parser, weights);
  add_compute_dtype_option(parser, config.compute_dtype);
  add_sampling_options(parser, config.sampling);
}

void add_output_options(OptionParser& parser, OutputConfig& out) {
  add_output_option(parser, "--json", "The record; - is standard output", out.json);
  add_output_option(parser, "--csv", "The record's tables; - is standard output", out.csv);
  add_output_option(parser, "--trace", "Chrome trace; - is standard output", out.trace);
  add_output_option(
      parser, "--logits", "Ids and logits of every request, as safetensors", out.logits);
  parser.value("--report", "F.html", "HTML report (not built yet)", [](const auto&, const auto&) {
    not_built("--report", "the HTML report is");
  });
  add_quiet_option(parser, out.quiet);
}

void check_conflicts(const OptionParser& parser, const RunConfig& config) {
  constexpr std::array real_prompts{"--prompt", "--prompt-ids", "--prompts"};
  for (size_t i = 0; i < real_prompts.size(); ++i) {
    for (size_t j = i + 1; j < real_prompts.size(); ++j)
      parser.refuse_together(real_prompts[i], real_prompts[j]);
    for (const char* synthetic : {"--batch", "--prompt-tokens", "--context"})
      parser.refuse_together(real_prompts[i], synthetic);
  }
  if (config.parallel.virtual_stages > 1 && config.parallel.pp == 1)
    throw ConfigError("--virtual-stages needs --pp of at least 2");
  const OutputConfig& out = config.output;
  refuse_standard_output({"--logits", &out.logits});
  refuse_same_output({{"--json", &out.json},
                      {"--csv", &out.csv},
                      {"--trace", &out.trace},
                      {"--logits", &out.logits}});
}

}  // namespace

Command parse_run(std::span<const std::string> args) {
  RunConfig config;
  WeightOptions weights;
  OptionParser parser("testbed",
                      "mpirun -np N testbed [run] --model M [options]     N = tp * pp * cp * dp\n"
                      "Shards a transformer over MPI ranks, runs it, and measures where each "
                      "step's time and bytes went.");
  add_model_option(parser, config.model);
  add_weights_option(parser, config.weights);
  add_layers_option(parser, config.layers);
  add_parallel_options(parser, config.parallel);
  add_device_options(parser, config);
  add_synthetic_workload(parser, config.workload);
  add_prompt_options(parser, config.workload);
  add_kv_block_option(parser, config.kv_block_size);
  add_step_tokens_option(parser, config.max_step_tokens);
  add_numeric_options(parser, config, weights);
  add_run_options(parser, config);
  add_deterministic_option(parser, config.deterministic);
  add_timeout_option(parser, config.timeout_s);
  add_output_options(parser, config.output);
  parser.footer("Other commands: testbed sweep | compare | plan | probe, each with its own --help");
  if (auto info = parser.parse(args)) return *info;
  check_conflicts(parser, config);
  config.weight_format = weight_format_of(weights);
  parser.require("--model", "a preset, a Hugging Face folder or a .gguf file");
  if (config.workload.context > 0 && !parser.given("--prompt-tokens"))
    config.workload.prompt_tokens = 1;
  return config;
}

}  // namespace testbed
