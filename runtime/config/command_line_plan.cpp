// `testbed plan`.
#include "runtime/config/command_line_commands.hpp"
#include "runtime/config/command_line_options.hpp"
#include "runtime/config/option_values.hpp"
#include "runtime/config/weight_options.hpp"

namespace testbed {
namespace {

void add_machine_options(OptionParser& parser, PlanConfig& config) {
  parser.value(
      "--cluster",
      "C",
      "Preset or TOML file (default dgx-h100)",
      [&](const auto& option, const auto& text) { config.cluster = require_text(option, text); });
  parser.value(
      "--device",
      "D",
      "Device preset or TOML file, in the place of the cluster's",
      [&](const auto& option, const auto& text) { config.device = require_text(option, text); });
}

void add_workload_options(OptionParser& parser, PlanConfig& config) {
  parser.integer("--batch", "B", "Users of each replica (default 1)", 1, max_batch, [&](int64_t n) {
    config.batch = n;
  });
  parser.integer("--context",
                 "N",
                 "Tokens that a user has cached (default 8192)",
                 1,
                 max_tokens,
                 [&](int64_t n) { config.context = n; });
  parser.integer("--prompt-tokens",
                 "P",
                 "Of a prefill step, per user (default 512)",
                 1,
                 max_tokens,
                 [&](int64_t n) { config.prompt_tokens = n; });
}

void add_output_options(OptionParser& parser, PlanConfig& config) {
  add_output_option(parser, "--claims", "Write the table of claims here", config.claims);
  add_output_option(
      parser, "--json", "The plan's figures; - is standard output", config.output.json);
  add_quiet_option(parser, config.output.quiet);
}

}  // namespace

Command parse_plan(std::span<const std::string> args) {
  PlanConfig config;
  WeightOptions weights;
  OptionParser parser(
      "testbed plan",
      "testbed plan --model M [options]\n"
      "Closed forms, no devices: rooflines, bytes, what fits, and what would change it.");
  add_model_option(parser, config.model);
  add_layers_option(parser, config.layers);
  add_machine_options(parser, config);
  add_split_options(parser, config.parallel, "Replicas (default 1)");
  add_workload_options(parser, config);
  add_weight_options(parser, weights);
  add_output_options(parser, config);
  if (auto info = parser.parse(args)) return *info;
  config.weight_format = weight_format_of(weights);
  refuse_standard_output({"--claims", &config.claims});
  refuse_same_output({{"--json", &config.output.json}, {"--claims", &config.claims}});
  if (!config.claims) parser.require("--model", "a preset, a Hugging Face folder or a .gguf file");
  return config;
}

}  // namespace testbed
