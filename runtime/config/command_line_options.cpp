#include "runtime/config/command_line_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "kernels/base/errors.hpp"
#include "runtime/config/option_values.hpp"

namespace testbed {
namespace {

void add_degree(OptionParser& parser,
                const char* name,
                const char* help,
                std::function<void(int)> set) {
  parser.integer(name, "N", help, 1, max_ranks, [set = std::move(set)](int64_t n) {
    set(static_cast<int>(n));
  });
}

}  // namespace

void add_model_option(OptionParser& parser, std::string& model) {
  parser.value("--model",
               "M",
               "Preset (llama3-70b), Hugging Face folder, or .gguf file; required",
               [&](const auto& option, const auto& text) { model = require_text(option, text); });
}

void add_layers_option(OptionParser& parser, std::optional<int64_t>& layers) {
  parser.integer(
      "--layers", "N", "Keep the first N layers", 1, max_tokens, [&](int64_t n) { layers = n; });
}

void add_weights_option(OptionParser& parser, std::optional<std::string>& weights) {
  parser.value("--weights",
               "PATH|random",
               "Weights for a preset (default random: seeded, the same at every sharding)",
               [&](const auto& option, const auto& text) { weights = require_text(option, text); });
}

void add_split_options(OptionParser& parser, ParallelConfig& p, const char* dp_help) {
  add_degree(parser, "--tp", "Tensor parallel degree (default 1)", [&p](int n) { p.tp = n; });
  add_degree(parser, "--pp", "Pipeline stages (default 1)", [&p](int n) { p.pp = n; });
  add_degree(parser,
             "--cp",
             "Context parallel degree: the sequence is split, KV blocks rotate (default 1)",
             [&p](int n) { p.cp = n; });
  add_degree(parser, "--dp", dp_help, [&p](int n) { p.dp = n; });
  add_degree(parser,
             "--ep",
             "Whole experts on groups of N of a stage's tp*cp*dp ranks (default 1: each expert is "
             "cut over tp)",
             [&p](int n) { p.ep = n; });
}

void add_exchange_options(OptionParser& parser, ParallelConfig& p) {
  parser.value("--cp-layout",
               "zigzag|contiguous",
               "Which blocks of a prompt a cp rank owns: zigzag r and 2n-1-r (default)",
               [&p](const auto& option, const auto& text) {
                 p.cp_placement = choose<CpPlacement>(
                     option,
                     text,
                     {{"zigzag", CpPlacement::zigzag}, {"contiguous", CpPlacement::contiguous}});
               });
  parser.value("--expert-exchange",
               "auto|all-to-all|all-reduce",
               "How tokens meet experts (default auto: all-reduce where ep = tp, else all-to-all)",
               [&p](const auto& option, const auto& text) {
                 p.expert_exchange =
                     choose<ExpertExchange>(option,
                                            text,
                                            {{"auto", ExpertExchange::automatic},
                                             {"all-to-all", ExpertExchange::all_to_all},
                                             {"all-reduce", ExpertExchange::all_reduce}});
               });
  parser.value(
      "--tp-comm",
      "all-reduce|reduce-scatter",
      "reduce-scatter: norms on a slice of the tokens, then all-gather (default all-reduce)",
      [&p](const auto& option, const auto& text) {
        p.tp_comm = choose<TpComm>(
            option,
            text,
            {{"all-reduce", TpComm::all_reduce}, {"reduce-scatter", TpComm::reduce_scatter}});
      });
}

void add_pipeline_options(OptionParser& parser, ParallelConfig& p) {
  add_degree(parser,
             "--microbatches",
             "Per pipeline pass (default: min(pp, what can be split))",
             [&p](int n) { p.microbatches = n; });
  add_degree(
      parser, "--virtual-stages", "Above 1 interleaves the pipeline (default 1)", [&p](int n) {
        p.virtual_stages = n;
      });
}

void add_device_option(OptionParser& parser, DeviceChoice& device) {
  parser.value("--device",
               "auto|cuda|cpu|sim",
               "Default auto",
               [&device](const auto& option, const auto& text) {
                 device = choose<DeviceChoice>(option,
                                               text,
                                               {{"auto", DeviceChoice::automatic},
                                                {"cuda", DeviceChoice::cuda},
                                                {"cpu", DeviceChoice::cpu},
                                                {"sim", DeviceChoice::sim}});
               });
}

void add_shared_gpu_option(OptionParser& parser, bool& allow_shared_gpu) {
  parser.flag("--allow-shared-gpu", "Several ranks may use one GPU (labelled)", [&] {
    allow_shared_gpu = true;
  });
}

void add_layout_options(OptionParser& parser, Layout& layout, bool& allow_shared_gpu) {
  parser.value("--layout",
               "L",
               "Links between the ranks: auto (default); of GPUs nvlink, nvlink-ring, pcie, shm, "
               "ib, socket; of processors mpi",
               [&layout](const auto& option, const auto& text) {
                 layout = choose<Layout>(option,
                                         text,
                                         {{"auto", Layout::automatic},
                                          {"mpi", Layout::mpi},
                                          {"tcp", Layout::tcp},
                                          {"shm", Layout::shm},
                                          {"nvlink", Layout::nvlink},
                                          {"nvlink-ring", Layout::nvlink_ring},
                                          {"pcie", Layout::pcie},
                                          {"ib", Layout::ib},
                                          {"socket", Layout::socket}});
               });
  add_shared_gpu_option(parser, allow_shared_gpu);
}

void add_threads_option(OptionParser& parser, std::optional<int>& threads) {
  parser.integer("--threads", "N", "Per rank (default: by affinity)", 1, 1 << 16, [&](int64_t n) {
    threads = static_cast<int>(n);
  });
}

void add_cluster_option(OptionParser& parser, std::optional<std::string>& cluster) {
  parser.value("--cluster",
               "C",
               "Preset or TOML file: what sim simulates (default dgx-h100), what peaks a real run "
               "is held against",
               [&](const auto& option, const auto& text) { cluster = require_text(option, text); });
}

void add_link_options(OptionParser& parser, ClusterConfig& cluster) {
  parser.value("--link-gb-s",
               "X",
               "Line rate of each device's link in the cluster, one direction, 1e9 bytes/s",
               [&](const auto& option, const auto& text) {
                 cluster.link_gb_s = parse_positive(option, text);
               });
  parser.value("--link-us",
               "X",
               "Latency of one step over that link, microseconds",
               [&](const auto& option, const auto& text) {
                 cluster.link_us = parse_non_negative(option, text);
               });
}

void add_algorithm_option(OptionParser& parser, ClusterConfig& cluster) {
  parser.value("--algorithm",
               "auto|ring|tree|nvls|one-shot|two-shot|hierarchical",
               "Of every simulated all-reduce (default auto: the fastest)",
               [&](const auto& option, const auto& text) {
                 const std::string name = choose<std::string>(option,
                                                              text,
                                                              {{"auto", ""},
                                                               {"ring", "ring"},
                                                               {"tree", "tree"},
                                                               {"nvls", "nvls"},
                                                               {"one-shot", "one-shot"},
                                                               {"two-shot", "two-shot"},
                                                               {"hierarchical", "hierarchical"}});
                 if (!name.empty()) cluster.algorithm = name;
               });
}

void add_gen_tokens_option(OptionParser& parser, int64_t& gen_tokens) {
  parser.integer("--gen-tokens",
                 "G",
                 fmt::format("Generated per request (default {})", gen_tokens),
                 1,
                 max_tokens,
                 [&](int64_t n) { gen_tokens = n; });
}

void add_kv_block_option(OptionParser& parser, int64_t& kv_block_size) {
  parser.integer("--kv-block-size",
                 "N",
                 fmt::format("Tokens per KV block (default {})", kv_block_size),
                 1,
                 1 << 16,
                 [&](int64_t n) { kv_block_size = n; });
}

void add_step_tokens_option(OptionParser& parser, std::optional<int64_t>& max_step_tokens) {
  parser.integer("--max-step-tokens",
                 "N",
                 "Prompt tokens of one step at most (default 2048 per cp rank)",
                 1,
                 max_tokens,
                 [&](int64_t n) { max_step_tokens = n; });
}

void add_compute_dtype_option(OptionParser& parser, DType& compute_dtype) {
  parser.value(
      "--compute-dtype",
      "bf16|f32",
      "Also of the KV cache and of what travels (default bf16)",
      [&](const auto& option, const auto& text) {
        compute_dtype = choose<DType>(option, text, {{"bf16", DType::BF16}, {"f32", DType::F32}});
      });
}

void add_sampling_options(OptionParser& parser, SamplingConfig& s) {
  parser.value("--seed",
               "S",
               "Of random weights, prompts and sampling (default 0)",
               [&s](const auto& option, const auto& text) { s.seed = parse_uint64(option, text); });
  parser.value(
      "--temperature", "T", "0 is greedy (default 0)", [&s](const auto& option, const auto& text) {
        s.temperature = parse_non_negative(option, text);
      });
  parser.value(
      "--top-p", "P", "Above 0, at most 1 (default 1)", [&s](const auto& option, const auto& text) {
        s.top_p = parse_double(option, text);
        if (s.top_p <= 0 || s.top_p > 1)
          throw ConfigError(fmt::format("{}: {} is not above 0 and at most 1", option, text));
      });
  parser.flag("--ignore-eos", "Always generate --gen-tokens tokens", [&s] { s.ignore_eos = true; });
}

void add_run_options(OptionParser& parser, RunConfig& run) {
  parser.integer("--warmup",
                 "W",
                 fmt::format("Generations before timing (default {})", run.warmup),
                 0,
                 1 << 20,
                 [&run](int64_t n) { run.warmup = static_cast<int>(n); });
  parser.integer("--repeats",
                 "R",
                 fmt::format("Timed generations (default {})", run.repeats),
                 1,
                 1 << 20,
                 [&run](int64_t n) { run.repeats = static_cast<int>(n); });
  parser.value(
      "--check",
      "off|layers|full",
      "The split against one rank, before timing (default layers)",
      [&run](const auto& option, const auto& text) {
        run.check = choose<CheckMode>(
            option,
            text,
            {{"off", CheckMode::off}, {"layers", CheckMode::layers}, {"full", CheckMode::full}});
      });
  add_inject_option(parser, run.inject);
}

void add_inject_option(OptionParser& parser, std::vector<Injection>& inject) {
  parser.value(
      "--inject",
      "KIND:WHERE",
      fmt::format("Test aid, labelled in the record: {}; may repeat", injection_forms),
      [&inject](const auto&, const auto& text) { inject.push_back(parse_injection(text)); },
      true);
}

void add_deterministic_option(OptionParser& parser, bool& deterministic) {
  parser.flag("--deterministic",
              "Only reductions of a fixed order; repeats must be bit-identical",
              [&] { deterministic = true; });
}

void add_stage_option(OptionParser& parser,
                      const std::string& help,
                      const std::vector<std::string_view>& names,
                      std::vector<std::string>& stages) {
  Choices<std::string> choices;
  choices.reserve(names.size());
  for (const std::string_view name : names) choices.emplace_back(name, name);
  parser.value("--stage",
               "A,B",
               fmt::format("{}: {}", help, fmt::join(names, ", ")),
               [&stages, choices](const auto& option, const auto& text) {
                 stages = parse_names(option, text);
                 for (const std::string& stage : stages) choose(option, stage, choices);
               });
}

void add_timeout_option(OptionParser& parser, double& timeout_s) {
  parser.value(
      "--timeout",
      "S",
      "Seconds for any one collective, and for start-up (default 120)",
      [&](const auto& option, const auto& text) {
        timeout_s = parse_positive(option, text);
        constexpr double max_timeout_s = 1e6;
        if (timeout_s > max_timeout_s)
          throw ConfigError(fmt::format("{}: {} is above {}", option, text, max_timeout_s));
      });
}

void add_output_option(OptionParser& parser,
                       const char* name,
                       const char* help,
                       std::optional<std::string>& path) {
  parser.value(name, "FILE", help, [&](const auto& option, const auto& text) {
    path = require_text(option, text);
  });
}

void add_quiet_option(OptionParser& parser, bool& quiet) {
  parser.flag("--quiet", "No progress and no table", [&] { quiet = true; });
}

}  // namespace testbed
