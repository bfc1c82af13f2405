// `testbed accept`.
#include <fmt/format.h>

#include "runtime/config/command_line_commands.hpp"
#include "runtime/config/command_line_options.hpp"
#include "runtime/config/option_values.hpp"

namespace testbed {
namespace {

void add_machine_options(OptionParser& parser, AcceptConfig& config) {
  parser.value(
      "--profile",
      "P",
      "Preset of configs/acceptance, or TOML file: what is expected (default on cpu: cpu-host)",
      [&](const auto& option, const auto& text) { config.profile = require_text(option, text); });
  parser.value("--device",
               "auto|cuda|cpu",
               "Default auto; an acceptance is never simulated",
               [&](const auto& option, const auto& text) {
                 config.device = choose<DeviceChoice>(option,
                                                      text,
                                                      {{"auto", DeviceChoice::automatic},
                                                       {"cuda", DeviceChoice::cuda},
                                                       {"cpu", DeviceChoice::cpu}});
               });
  add_layout_options(parser, config.layout, config.allow_shared_gpu);
  add_threads_option(parser, config.threads);
  add_compute_dtype_option(parser, config.compute_dtype);
}

void add_choice_options(OptionParser& parser, AcceptConfig& config) {
  add_stage_option(parser,
                   "Only these stages",
                   {"preflight", "device", "links", "collectives", "model", "corruption", "soak"},
                   config.stages);
  parser.value(
      "--case",
      "TEXT",
      "Only cases whose STAGE/NAME contains it",
      [&](const auto& option, const auto& text) { config.only = require_text(option, text); });
  parser.flag("--quick", "Fewer sizes and repeats", [&] { config.quick = true; });
  parser.flag("--list", "Say what would run and how long it takes", [&] { config.list = true; });
  parser.value(
      "--explain",
      "CASE",
      "Say what the case STAGE/NAME does and what it is held against",
      [&](const auto& option, const auto& text) { config.explain = require_text(option, text); });
  parser.value(
      "--baseline",
      "FILE",
      "verdict.json of an earlier acceptance: how the figures drifted",
      [&](const auto& option, const auto& text) { config.baseline = require_text(option, text); });
}

void add_model_options(OptionParser& parser, AcceptConfig& config) {
  parser.value(
      "--model",
      "M",
      fmt::format("Of the stages model, corruption and soak (default {})", config.model),
      [&](const auto& option, const auto& text) { config.model = require_text(option, text); });
  add_weights_option(parser, config.weights);
  add_layers_option(parser, config.layers);
  parser.value("--ttft-target",
               "MS",
               fmt::format("Of goodput: milliseconds to the first token (default {})",
                           config.ttft_target_ms),
               [&](const auto& option, const auto& text) {
                 config.ttft_target_ms = parse_positive(option, text);
               });
  parser.value(
      "--tpot-target",
      "MS",
      fmt::format("Of goodput: milliseconds per further token (default {})", config.tpot_target_ms),
      [&](const auto& option, const auto& text) {
        config.tpot_target_ms = parse_positive(option, text);
      });
}

void add_effort_options(OptionParser& parser, AcceptConfig& config) {
  parser.integer("--max-bytes",
                 "N",
                 "Of a message or collective (default 1073741824, with --quick 16777216)",
                 1,
                 int64_t{1} << 40,
                 [&](int64_t n) { config.most_bytes = n; });
  parser.integer("--repeats",
                 "R",
                 "Of a measurement, whose median is judged (default 5, with --quick 3)",
                 1,
                 1 << 20,
                 [&](int64_t n) { config.repeats = static_cast<int>(n); });
  parser.value("--soak",
               "S",
               "Seconds of the stage soak (default 0: it is not run)",
               [&](const auto& option, const auto& text) {
                 config.soak_s = parse_non_negative(option, text);
               });
  parser.value(
      "--seed",
      "S",
      "Of weights, prompts and patterns (default 0)",
      [&](const auto& option, const auto& text) { config.seed = parse_uint64(option, text); });
  add_inject_option(parser, config.inject);
  add_timeout_option(parser, config.timeout_s);
}

// What --quick leaves unless it is asked for.
void make_quick(const OptionParser& parser, AcceptConfig& config) {
  constexpr int64_t quick_bytes = int64_t{16} << 20;
  constexpr int quick_repeats = 3;
  if (!parser.given("--max-bytes")) config.most_bytes = quick_bytes;
  if (!parser.given("--repeats")) config.repeats = quick_repeats;
}

}  // namespace

Command parse_accept(std::span<const std::string> args) {
  AcceptConfig config;
  OptionParser parser("testbed accept",
                      "mpirun -np N testbed accept [options]\n"
                      "Whether a cluster is fit to sign for: exit code 0 accept, 1 reject, "
                      "2 incomplete, 3 infrastructure, 4 corruption.");
  add_machine_options(parser, config);
  add_choice_options(parser, config);
  add_model_options(parser, config);
  add_effort_options(parser, config);
  parser.value(
      "--output",
      "FOLDER",
      fmt::format("Of verdict.json, junit.xml, summary.txt and metrics.prom (default {})",
                  config.folder),
      [&](const auto& option, const auto& text) { config.folder = require_text(option, text); });
  add_quiet_option(parser, config.quiet);
  if (auto info = parser.parse(args)) return *info;
  if (config.list && config.explain) {
    throw ConfigError("--list and --explain exclude each other");
  }
  if (config.quick) make_quick(parser, config);
  return config;
}

}  // namespace testbed
