// `testbed sweep`: run's options, with lists for what is swept.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/errors.hpp"
#include "runtime/config/command_line_commands.hpp"
#include "runtime/config/command_line_options.hpp"
#include "runtime/config/option_values.hpp"
#include "runtime/config/weight_options.hpp"

namespace testbed {
namespace {

void add_degrees(OptionParser& parser,
                 const char* name,
                 const char* help,
                 std::vector<int>& degrees) {
  parser.value(name, "N,N,...", help, [&degrees](const auto& option, const auto& text) {
    const std::vector<int64_t> list = parse_distinct_ints(option, text, 1, max_ranks);
    degrees.assign(list.size(), 0);
    std::transform(
        list.begin(), list.end(), degrees.begin(), [](int64_t n) { return static_cast<int>(n); });
  });
}

void add_list(OptionParser& parser,
              const char* name,
              const char* help,
              int64_t highest,
              std::vector<int64_t>& values) {
  parser.value(name, "N,N,...", help, [&values, highest](const auto& option, const auto& text) {
    values = parse_distinct_ints(option, text, 1, highest);
  });
}

void add_swept_options(OptionParser& parser, SweepConfig& config) {
  add_degrees(parser, "--tp", "Tensor parallel degrees (default 1)", config.tp);
  add_degrees(parser, "--pp", "Pipeline stages (default 1)", config.pp);
  add_degrees(parser, "--cp", "Context parallel degrees (default 1)", config.cp);
  add_degrees(parser, "--dp", "Replicas (default 1)", config.dp);
  add_degrees(parser, "--ep", "Expert parallel degrees (default 1)", config.ep);
  parser.value(
      "--cluster",
      "C,C,...",
      "Presets or TOML files (default dgx-h100)",
      [&](const auto& option, const auto& text) { config.clusters = parse_names(option, text); });
  add_list(parser, "--batch", "Equal requests (default 1)", max_batch, config.batch);
  add_list(parser,
           "--context",
           "Tokens cached already, in front of the prompt (synthetic KV; default none)",
           max_tokens,
           config.context);
  add_list(parser,
           "--prompt-tokens",
           "Of each request (default 512; 1 with --context)",
           max_tokens,
           config.prompt_tokens);
  parser.value(
      "--best",
      "tpot|throughput",
      "Search every legal split of the cluster's devices that fits, in the place of --tp, "
      "--pp, --dp; with --cp and --ep among these degrees, else with cp 1 and, of experts, ep 1, "
      "tp and the ranks of a stage",
      [&](const auto& option, const auto& text) {
        config.best = choose<SweepConfig::Best>(
            option,
            text,
            {{"tpot", SweepConfig::Best::tpot}, {"throughput", SweepConfig::Best::throughput}});
      });
}

// What is the same at every point.
void add_base_options(OptionParser& parser, RunConfig& base, WeightOptions& weights) {
  add_model_option(parser, base.model);
  add_weights_option(parser, base.weights);
  add_layers_option(parser, base.layers);
  add_pipeline_options(parser, base.parallel);
  add_exchange_options(parser, base.parallel);
  parser.value("--device",
               "auto|sim",
               "The simulator, either way",
               [&base](const auto& option, const auto& text) {
                 for (const std::string_view real : {"cpu", "cuda"})
                   if (text == real)
                     throw ConfigError(fmt::format(
                         "{} {}: a sweep is simulated: mpirun fixes the number of ranks, and each "
                         "point needs its own; run the points one by one and compare their records",
                         option,
                         text));
                 base.device = choose<DeviceChoice>(
                     option, text, {{"auto", DeviceChoice::sim}, {"sim", DeviceChoice::sim}});
               });
  add_link_options(parser, base.cluster);
  add_algorithm_option(parser, base.cluster);
  add_gen_tokens_option(parser, base.workload.gen_tokens);
  add_kv_block_option(parser, base.kv_block_size);
  add_step_tokens_option(parser, base.max_step_tokens);
  add_weight_options(parser, weights);
  add_compute_dtype_option(parser, base.compute_dtype);
  add_sampling_options(parser, base.sampling);
  add_run_options(parser, base);
  add_timeout_option(parser, base.timeout_s);
  add_output_option(parser,
                    "--json",
                    "All points' records, the crossovers, the what-ifs; - is standard output",
                    base.output.json);
  add_output_option(
      parser, "--csv", "One line per point and phase; - is standard output", base.output.csv);
  add_quiet_option(parser, base.output.quiet);
}

void check_conflicts(const OptionParser& parser, const SweepConfig& config) {
  for (const char* degree : {"--tp", "--pp", "--dp"}) parser.refuse_together("--best", degree);
  if (config.base.parallel.virtual_stages > 1 && config.best == SweepConfig::Best::none &&
      std::find(config.pp.begin(), config.pp.end(), 1) != config.pp.end())
    throw ConfigError("--virtual-stages needs --pp of at least 2");
  refuse_same_output({{"--json", &config.base.output.json}, {"--csv", &config.base.output.csv}});
}

}  // namespace

Command parse_sweep(std::span<const std::string> args) {
  SweepConfig config;
  WeightOptions weights;
  config.clusters = {"dgx-h100"};
  // Simulated time has no noise and no cold start: one generation is all there is to see.
  config.base.device = DeviceChoice::sim;
  config.base.warmup = 0;
  config.base.repeats = 1;
  config.base.check = CheckMode::off;
  OptionParser parser("testbed sweep",
                      "testbed sweep --model M --tp 1,2,4,8 --cluster A,B [options]\n"
                      "Simulates every combination of the lists: each step's split, what would "
                      "have made it faster, "
                      "and from which degree the interconnect costs more than the memory.");
  add_swept_options(parser, config);
  add_base_options(parser, config.base, weights);
  if (auto info = parser.parse(args)) return *info;
  check_conflicts(parser, config);
  config.base.weight_format = weight_format_of(weights);
  if (config.best != SweepConfig::Best::none && !parser.given("--ep")) config.ep.clear();
  parser.require("--model", "a preset, a Hugging Face folder or a .gguf file");
  if (parser.given("--context") && !parser.given("--prompt-tokens")) config.prompt_tokens = {1};
  return config;
}

}  // namespace testbed
