// Command line parsing: CLI11 splits the arguments, every value is parsed here, so that numbers do
// not depend on the locale and messages are ours.
#include "runtime/config/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/base/errors.hpp"
#include "runtime/config/option_values.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

class Parser {
 public:
  Parser();
  std::variant<RunConfig, InfoText> parse(std::span<const std::string> args);

 private:
  using Setter = std::function<void(const std::string& option, const std::string& value)>;
  void value(const std::string& name,
             const char* placeholder,
             const std::string& help,
             Setter set,
             bool repeatable = false);
  void integer(const std::string& name,
               const char* placeholder,
               const std::string& help,
               int64_t lowest,
               int64_t highest,
               std::function<void(int64_t)> set);
  void flag(const std::string& name, const std::string& help, std::function<void()> set);
  void add_model_options();
  void add_parallel_options();
  void add_device_options();
  void add_workload_options();
  void add_numeric_options();
  void add_run_options();
  void add_output_options();
  bool given(const std::string& name) const { return given_.contains(name); }
  void refuse_together(const std::string& a, const std::string& b) const;
  void check_conflicts() const;
  void check_outputs() const;

  CLI::App app_{
      "mpirun -np N testbed [run] --model M [options]     N = tp * pp * cp * dp\n"
      "Shards a transformer over MPI ranks, runs it, and measures where each step's time and bytes "
      "went."};
  RunConfig config_;
  std::set<std::string> given_;
  bool version_ = false;
};

Parser::Parser() {
  app_.name("testbed");
  app_.set_help_flag("-h,--help", "Print this and exit");
  add_model_options();
  add_parallel_options();
  add_device_options();
  add_workload_options();
  add_numeric_options();
  add_run_options();
  add_output_options();
}

void Parser::value(const std::string& name,
                   const char* placeholder,
                   const std::string& help,
                   Setter set,
                   bool repeatable) {
  CLI::Option* option = app_.add_option(
      name,
      [this, name, set = std::move(set)](const CLI::results_t& values) {
        given_.insert(name);
        for (const std::string& text : values) {
          // CLI11 takes whatever follows as the value; only a prompt may look like an option.
          if (text.starts_with("--") && name != "--prompt")
            throw ConfigError(
                fmt::format("{}: a value is missing before {}", name, in_quotes(text)));
          set(name, text);
        }
        return true;
      },
      help);
  option->type_name(placeholder)->expected(1)->allow_extra_args(false);
  option->multi_option_policy(repeatable ? CLI::MultiOptionPolicy::TakeAll
                                         : CLI::MultiOptionPolicy::Throw);
}

void Parser::integer(const std::string& name,
                     const char* placeholder,
                     const std::string& help,
                     int64_t lowest,
                     int64_t highest,
                     std::function<void(int64_t)> set) {
  value(
      name,
      placeholder,
      help,
      [lowest, highest, set = std::move(set)](const std::string& option, const std::string& text) {
        set(parse_int(option, text, lowest, highest));
      });
}

void Parser::flag(const std::string& name, const std::string& help, std::function<void()> set) {
  app_.add_flag_callback(name, std::move(set), help)->disable_flag_override();
}

void Parser::add_model_options() {
  value(
      "--model",
      "M",
      "Preset (llama3-70b), Hugging Face folder, or .gguf file; required",
      [this](const auto& option, const auto& text) { config_.model = require_text(option, text); });
  value("--weights",
        "PATH|random",
        "Weights for a preset (default random: seeded, the same at every sharding)",
        [this](const auto& option, const auto& text) {
          config_.weights = require_text(option, text);
        });
  integer("--layers", "N", "Keep the first N layers", 1, max_tokens, [this](int64_t n) {
    config_.layers = n;
  });
}

void Parser::add_parallel_options() {
  ParallelConfig& p = config_.parallel;
  const auto degree = [&](const char* name, const char* help, auto set) {
    integer(name, "N", help, 1, max_ranks, [set](int64_t n) { set(static_cast<int>(n)); });
  };
  degree("--tp", "Tensor parallel degree (default 1)", [&p](int n) { p.tp = n; });
  degree("--pp", "Pipeline stages (default 1)", [&p](int n) { p.pp = n; });
  degree("--cp", "Context parallel degree (not built yet)", [&p](int n) {
    if (n > 1) not_built(fmt::format("--cp {}", n), "context parallelism is");
    p.cp = n;
  });
  degree("--dp", "Replicas (default: what the processes leave over)", [&p](int n) { p.dp = n; });
  degree("--ep", "Expert parallel degree (not built yet)", [&p](int n) {
    if (n > 1) not_built(fmt::format("--ep {}", n), "expert parallelism is");
    p.ep = n;
  });
  degree("--microbatches", "Per pipeline pass (default: min(pp, what can be split))", [&p](int n) {
    p.microbatches = n;
  });
  degree("--virtual-stages", "Above 1 interleaves the pipeline (default 1)", [&p](int n) {
    p.virtual_stages = n;
  });
}

void Parser::add_device_options() {
  value("--device",
        "auto|cuda|cpu|sim",
        "Default auto",
        [this](const auto& option, const auto& text) {
          config_.device = choose<DeviceChoice>(option,
                                                text,
                                                {{"auto", DeviceChoice::automatic},
                                                 {"cuda", DeviceChoice::cuda},
                                                 {"cpu", DeviceChoice::cpu},
                                                 {"sim", DeviceChoice::sim}});
          if (config_.device == DeviceChoice::cuda)
            not_built("--device cuda", "the CUDA device is");
          if (config_.device == DeviceChoice::sim) not_built("--device sim", "the simulator is");
        });
  flag("--allow-shared-gpu", "Several ranks may use one GPU (not built yet)", [] {
    not_built("--allow-shared-gpu", "the CUDA device is");
  });
  for (const char* name : {"--cluster", "--link-gb-s", "--link-us"})
    value(name, "X", "Simulated links (not built yet)", [](const auto& option, const auto& text) {
      not_built(fmt::format("{} {}", option, text), "the simulator is");
    });
  value(
      "--layout",
      "auto|mpi",
      "Links between the ranks (default auto: mpi)",
      [this](const auto& option, const auto& text) {
        for (const std::string_view later : {"nvlink", "nvlink-ring", "ib", "socket", "tcp", "shm"})
          if (text == later) not_built(fmt::format("--layout {}", text), "this layout is");
        config_.layout =
            choose<Layout>(option, text, {{"auto", Layout::automatic}, {"mpi", Layout::mpi}});
      });
  integer("--threads", "N", "Per rank (default: by affinity)", 1, 1 << 16, [this](int64_t n) {
    config_.threads = static_cast<int>(n);
  });
}

void Parser::add_workload_options() {
  WorkloadConfig& w = config_.workload;
  integer(
      "--batch", "B", "Equal requests of random tokens (default 1)", 1, 1 << 24, [&w](int64_t n) {
        w.batch = n;
      });
  integer("--prompt-tokens",
          "P",
          "Of each such request (default 512; 1 with --context)",
          1,
          max_tokens,
          [&w](int64_t n) { w.prompt_tokens = n; });
  integer(
      "--gen-tokens", "G", "Generated per request (default 32)", 1, max_tokens, [&w](int64_t n) {
        w.gen_tokens = n;
      });
  integer("--context",
          "N",
          "Decode as if N tokens were cached already (synthetic KV, labelled)",
          1,
          max_tokens,
          [&w](int64_t n) { w.context = n; });
  value("--prompt", "TEXT", "One request with this text", [&w](const auto&, const auto& text) {
    if (text.empty()) throw ConfigError("--prompt: the prompt is empty");
    w.prompt = text;
  });
  value(
      "--prompt-ids",
      "1,2,3",
      "One request with these token ids; may repeat",
      [&w](const auto&, const auto& text) { w.prompt_ids.push_back(parse_ids(text)); },
      true);
  value(
      "--prompts",
      "FILE.jsonl",
      R"(Lines {"prompt": "..."} or {"prompt_ids": [...], "gen_tokens": n})",
      [&w](const auto& option, const auto& text) { w.prompts_file = require_text(option, text); });
  integer(
      "--kv-block-size", "N", "Tokens per KV block (default 16)", 1, 1 << 16, [this](int64_t n) {
        config_.kv_block_size = n;
      });
}

void Parser::add_numeric_options() {
  value("--weight-dtype",
        "auto|bf16|f32",
        "Default auto: as stored",
        [this](const auto& option, const auto& text) {
          for (const std::string_view later : {"int8", "int4", "fp8"})
            if (text == later)
              not_built(fmt::format("--weight-dtype {}", text), "this weight dtype is");
          config_.weight_dtype = choose<std::optional<DType>>(
              option, text, {{"auto", std::nullopt}, {"bf16", DType::BF16}, {"f32", DType::F32}});
        });
  value("--compute-dtype",
        "bf16|f32",
        "Also of the KV cache and of what travels (default bf16)",
        [this](const auto& option, const auto& text) {
          config_.compute_dtype =
              choose<DType>(option, text, {{"bf16", DType::BF16}, {"f32", DType::F32}});
        });
  SamplingConfig& s = config_.sampling;
  value("--seed",
        "S",
        "Of random weights, prompts and sampling (default 0)",
        [&s](const auto& option, const auto& text) { s.seed = parse_uint64(option, text); });
  value(
      "--temperature", "T", "0 is greedy (default 0)", [&s](const auto& option, const auto& text) {
        s.temperature = parse_double(option, text);
        if (s.temperature < 0) throw ConfigError(fmt::format("{}: {} is below 0", option, text));
      });
  value(
      "--top-p", "P", "Above 0, at most 1 (default 1)", [&s](const auto& option, const auto& text) {
        s.top_p = parse_double(option, text);
        if (s.top_p <= 0 || s.top_p > 1)
          throw ConfigError(fmt::format("{}: {} is not above 0 and at most 1", option, text));
      });
  flag("--ignore-eos", "Always generate --gen-tokens tokens", [&s] { s.ignore_eos = true; });
}

void Parser::add_run_options() {
  integer("--warmup", "W", "Generations before timing (default 2)", 0, 1 << 20, [this](int64_t n) {
    config_.warmup = static_cast<int>(n);
  });
  integer("--repeats", "R", "Timed generations (default 5)", 1, 1 << 20, [this](int64_t n) {
    config_.repeats = static_cast<int>(n);
  });
  value("--check",
        "off|layers|full",
        "The split against one rank, before timing (default layers)",
        [this](const auto& option, const auto& text) {
          config_.check = choose<CheckMode>(
              option,
              text,
              {{"off", CheckMode::off}, {"layers", CheckMode::layers}, {"full", CheckMode::full}});
        });
  value(
      "--inject",
      "KIND:WHERE",
      "Test aid, labelled in the record: delay:rank=R,us=N[,every=N]; may repeat",
      [this](const auto&, const auto& text) { config_.inject.push_back(parse_injection(text)); },
      true);
  value("--timeout",
        "S",
        "Seconds for any one collective, and for start-up (default 120)",
        [this](const auto& option, const auto& text) {
          config_.timeout_s = parse_positive(option, text);
          constexpr double max_timeout_s = 1e6;
          if (config_.timeout_s > max_timeout_s)
            throw ConfigError(fmt::format("{}: {} is above {}", option, text, max_timeout_s));
        });
}

void Parser::add_output_options() {
  OutputConfig& out = config_.output;
  const auto path = [this](const char* name, const char* help, std::optional<std::string>& to) {
    value(name, "FILE", help, [&to](const auto& option, const auto& text) {
      to = require_text(option, text);
    });
  };
  path("--json", "The record; - is standard output", out.json);
  path("--csv", "The record's tables; - is standard output", out.csv);
  path("--trace", "Chrome trace; - is standard output", out.trace);
  path("--logits", "Ids and logits of every request, as safetensors", out.logits);
  value("--report", "F.html", "HTML report (not built yet)", [](const auto&, const auto&) {
    not_built("--report", "the HTML report is");
  });
  flag("--quiet", "No progress and no table", [&out] { out.quiet = true; });
  flag("--version", "Print the version and exit", [this] { version_ = true; });
}

void Parser::refuse_together(const std::string& a, const std::string& b) const {
  if (given(a) && given(b)) throw ConfigError(fmt::format("{} and {} exclude each other", a, b));
}

void Parser::check_conflicts() const {
  constexpr std::array real_prompts{"--prompt", "--prompt-ids", "--prompts"};
  for (size_t i = 0; i < real_prompts.size(); ++i) {
    for (size_t j = i + 1; j < real_prompts.size(); ++j)
      refuse_together(real_prompts[i], real_prompts[j]);
    for (const char* synthetic : {"--batch", "--prompt-tokens", "--context"})
      refuse_together(real_prompts[i], synthetic);
  }
  if (config_.parallel.virtual_stages > 1 && config_.parallel.pp == 1)
    throw ConfigError("--virtual-stages needs --pp of at least 2");
}

void Parser::check_outputs() const {
  const OutputConfig& out = config_.output;
  const std::array<std::pair<const char*, const std::optional<std::string>*>, 4> outputs{
      {{"--json", &out.json},
       {"--csv", &out.csv},
       {"--trace", &out.trace},
       {"--logits", &out.logits}}};
  if (out.logits == "-") throw ConfigError("--logits: needs a file, not standard output");
  for (size_t i = 0; i < outputs.size(); ++i)
    for (size_t j = i + 1; j < outputs.size(); ++j)
      if (*outputs[i].second && *outputs[i].second == *outputs[j].second)
        throw ConfigError(fmt::format("{} and {} both write to {}",
                                      outputs[i].first,
                                      outputs[j].first,
                                      **outputs[i].second == "-" ? std::string("standard output")
                                                                 : in_quotes(**outputs[i].second)));
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::variant<RunConfig, InfoText> Parser::parse(std::span<const std::string> args) {
  // CLI11 takes the arguments from the back.
  std::vector<std::string> reversed(args.rbegin(), args.rend());
  try {
    app_.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return InfoText{app_.help()};
  } catch (const CLI::ExtrasError&) {
    throw ConfigError(fmt::format("unknown option or stray argument {}; see --help",
                                  in_quotes(app_.remaining().front())));
  } catch (const CLI::ArgumentMismatch& error) {
    throw ConfigError(fmt::format("{} (a flag takes no value, an option takes one, once)",
                                  one_line(error.what())));
  } catch (const CLI::Error& error) {
    throw ConfigError(one_line(error.what()));
  }
  if (version_) return InfoText{fmt::format("testbed {}\n", TESTBED_VERSION)};
  check_conflicts();
  check_outputs();
  if (!given("--model"))
    throw ConfigError("--model is missing: a preset, a Hugging Face folder or a .gguf file");
  if (config_.workload.context > 0 && !given("--prompt-tokens")) config_.workload.prompt_tokens = 1;
  return config_;
}

}  // namespace

std::variant<RunConfig, InfoText> parse_command_line(std::span<const std::string> args) {
  if (!args.empty() && !args.front().starts_with('-')) {
    const std::string& command = args.front();
    for (const std::string_view later : {"sweep", "compare", "plan", "probe", "serve", "accept"})
      if (command == later) not_built(command, "this command is");
    if (command != "run")
      throw ConfigError(fmt::format(
          "unknown command {}; commands: run, sweep, compare, plan, probe, serve, accept",
          in_quotes(command)));
    args = args.subspan(1);
  }
  return Parser().parse(args);
}

}  // namespace testbed
