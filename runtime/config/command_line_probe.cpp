// `testbed probe`.
#include "kernels/base/errors.hpp"
#include "runtime/config/command_line_commands.hpp"
#include "runtime/config/command_line_options.hpp"
#include "runtime/config/option_values.hpp"

namespace testbed {
namespace {

void add_acceptance_options(OptionParser& parser, ProbeConfig& config) {
  add_output_option(parser,
                    "--acceptance",
                    "In the place of the curves: a profile for `accept` with what its stages "
                    "measure here",
                    config.acceptance);
  add_stage_option(parser,
                   "With --acceptance, only what these measure",
                   {"device", "links", "collectives", "model"},
                   config.stages);
  parser.value(
      "--model",
      "M",
      "With --acceptance, of the stage model (default as of `accept`)",
      [&](const auto& option, const auto& text) { config.model = require_text(option, text); });
}

void check_acceptance(const OptionParser& parser, const ProbeConfig& config) {
  refuse_standard_output({"--acceptance", &config.acceptance});
  for (const char* curves : {"--json", "--toml", "--cluster"}) {
    parser.refuse_together("--acceptance", curves);
  }
  if (config.acceptance && config.device == DeviceChoice::sim) {
    throw ConfigError("--acceptance: a profile is of what was measured, not of --device sim");
  }
  for (const char* of_profile : {"--stage", "--model"}) {
    if (parser.given(of_profile) && !config.acceptance) {
      throw ConfigError(std::string(of_profile) + " needs --acceptance");
    }
  }
}

}  // namespace

Command parse_probe(std::span<const std::string> args) {
  ProbeConfig config;
  OptionParser parser(
      "testbed probe",
      "mpirun -np N testbed probe [options]     or, without mpirun, --device sim\n"
      "A machine's own curves: read bandwidth, GEMM and attention rates, overheads, "
      "and each collective by size.");
  add_device_option(parser, config.device);
  add_cluster_option(parser, config.cluster.name);
  add_link_options(parser, config.cluster);
  add_shared_gpu_option(parser, config.allow_shared_gpu);
  add_threads_option(parser, config.threads);
  add_compute_dtype_option(parser, config.compute_dtype);
  parser.integer("--max-bytes",
                 "N",
                 "Of a collective's payload (default 1073741824)",
                 1,
                 int64_t{1} << 40,
                 [&](int64_t n) { config.most_bytes = n; });
  add_timeout_option(parser, config.timeout_s);
  add_output_option(parser, "--json", "The curves; - is standard output", config.output.json);
  add_output_option(
      parser, "--toml", "A device + cluster preset with what was measured", config.toml);
  add_acceptance_options(parser, config);
  add_quiet_option(parser, config.output.quiet);
  if (auto info = parser.parse(args)) return *info;
  refuse_standard_output({"--toml", &config.toml});
  refuse_same_output({{"--json", &config.output.json}, {"--toml", &config.toml}});
  check_acceptance(parser, config);
  return config;
}

}  // namespace testbed
