// The command line: defaults, every option, mistakes and conflicts.
#include <clocale>
#include <locale>
#include <sstream>

#include "runtime/config/command_line.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using test::config_error;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Args = std::vector<std::string>;

RunConfig parse(Args args) {
  args.insert(args.end(), {"--model", "llama3-8b"});
  return std::get<RunConfig>(parse_command_line(args));
}
std::string error_of(const Args& args) {
  return config_error([&] { parse(args); });
}

TEST(CommandLine, defaults) {
  const RunConfig run = parse({});
  RunConfig expected;
  expected.model = "llama3-8b";
  EXPECT_EQ(run, expected);
  EXPECT_EQ(parse({"run"}), expected);
  EXPECT_EQ(run.warmup, 2);
  EXPECT_EQ(run.repeats, 5);
  EXPECT_EQ(run.check, CheckMode::layers);
  EXPECT_EQ(run.timeout_s, 120);
  EXPECT_EQ(run.kv_block_size, 16);
  EXPECT_EQ(run.compute_dtype, DType::BF16);
  EXPECT_FALSE(run.weight_format);
  EXPECT_FALSE(run.parallel.dp);
  EXPECT_TRUE(run.workload.is_synthetic());
  EXPECT_EQ(run.workload.batch, 1);
  EXPECT_EQ(run.workload.prompt_tokens, 512);
  EXPECT_EQ(run.workload.gen_tokens, 32);
  EXPECT_EQ(run.sampling.temperature, 0);
}

TEST(CommandLine, every_option_is_stored) {
  const RunConfig run = parse({"--weights",
                               "random",
                               "--layers",
                               "2",
                               "--tp",
                               "4",
                               "--pp=2",
                               "--cp",
                               "2",
                               "--dp",
                               "3",
                               "--ep",
                               "12",
                               "--cp-layout",
                               "contiguous",
                               "--expert-exchange",
                               "all-to-all",
                               "--tp-comm",
                               "reduce-scatter",
                               "--max-step-tokens",
                               "4096",
                               "--deterministic",
                               "--device",
                               "cpu",
                               "--layout",
                               "mpi",
                               "--cluster",
                               "h100-pcie-8",
                               "--link-gb-s",
                               "25.5",
                               "--link-us",
                               "0",
                               "--algorithm",
                               "two-shot",
                               "--batch",
                               "8",
                               "--prompt-tokens",
                               "100",
                               "--gen-tokens",
                               "7",
                               "--context",
                               "1000",
                               "--microbatches",
                               "4",
                               "--virtual-stages",
                               "2",
                               "--weight-dtype",
                               "f32",
                               "--compute-dtype",
                               "f32",
                               "--seed",
                               "18446744073709551615",
                               "--temperature",
                               "0.8",
                               "--top-p",
                               "0.95",
                               "--ignore-eos",
                               "--warmup",
                               "0",
                               "--repeats",
                               "1",
                               "--check",
                               "full",
                               "--json",
                               "-",
                               "--csv",
                               "a.csv",
                               "--trace",
                               "t.json",
                               "--logits",
                               "l.safetensors",
                               "--inject",
                               "delay:rank=2,us=5000",
                               "--inject",
                               "delay:us=1,every=3,rank=0",
                               "--timeout",
                               "7.5",
                               "--threads",
                               "3",
                               "--kv-block-size",
                               "32",
                               "--quiet"});
  RunConfig e;
  e.model = "llama3-8b";
  e.weights = "random";
  e.layers = 2;
  e.parallel = {.tp = 4,
                .pp = 2,
                .cp = 2,
                .dp = 3,
                .ep = 12,
                .microbatches = 4,
                .virtual_stages = 2,
                .cp_placement = CpPlacement::contiguous,
                .expert_exchange = ExpertExchange::all_to_all,
                .tp_comm = TpComm::reduce_scatter};
  e.device = DeviceChoice::cpu;
  e.layout = Layout::mpi;
  e.cluster = {.name = "h100-pcie-8", .link_gb_s = 25.5, .link_us = 0.0, .algorithm = "two-shot"};
  e.workload.batch = 8;
  e.workload.prompt_tokens = 100;
  e.workload.gen_tokens = 7;
  e.workload.context = 1000;
  e.weight_format = DType::F32;
  e.compute_dtype = DType::F32;
  e.sampling = {.seed = UINT64_MAX, .temperature = 0.8, .top_p = 0.95, .ignore_eos = true};
  e.warmup = 0;
  e.repeats = 1;
  e.check = CheckMode::full;
  e.output = {
      .json = "-", .csv = "a.csv", .trace = "t.json", .logits = "l.safetensors", .quiet = true};
  e.inject = {{.rank = 2, .delay_us = 5000, .every = 1}, {.rank = 0, .delay_us = 1, .every = 3}};
  e.timeout_s = 7.5;
  e.threads = 3;
  e.kv_block_size = 32;
  e.max_step_tokens = 4096;
  e.deterministic = true;
  EXPECT_EQ(run, e);
  EXPECT_TRUE(run.output.stdout_is_taken());
}

TEST(CommandLine, layouts_by_name) {
  for (size_t i = 0; i < std::size(layout_names); ++i)
    EXPECT_EQ(parse({"--layout", std::string(layout_names[i])}).layout, static_cast<Layout>(i));
  EXPECT_FALSE(parse({}).allow_shared_gpu);
  EXPECT_TRUE(parse({"--allow-shared-gpu"}).allow_shared_gpu);
}

TEST(CommandLine, counts_dram_bytes_on_request) {
  EXPECT_FALSE(parse({}).dram_counters);
  EXPECT_TRUE(parse({"--dram-counters"}).dram_counters);
}

TEST(CommandLine, exchanges_by_name) {
  EXPECT_EQ(parse({"--cp-layout", "zigzag"}).parallel.cp_placement, CpPlacement::zigzag);
  EXPECT_EQ(parse({"--expert-exchange", "all-reduce"}).parallel.expert_exchange,
            ExpertExchange::all_reduce);
  EXPECT_EQ(parse({"--expert-exchange", "auto"}).parallel.expert_exchange,
            ExpertExchange::automatic);
  EXPECT_EQ(parse({"--tp-comm", "all-reduce"}).parallel.tp_comm, TpComm::all_reduce);
}

TEST(CommandLine, the_simulator_is_a_device) {
  EXPECT_EQ(parse({"--device", "sim"}).device, DeviceChoice::sim);
  EXPECT_FALSE(parse({"--algorithm", "auto"}).cluster.algorithm);
}

TEST(CommandLine, prompts) {
  const RunConfig ids = parse({"--prompt-ids", "1,2,3", "--prompt-ids", "7"});
  EXPECT_THAT(ids.workload.prompt_ids, ElementsAre(ElementsAre(1, 2, 3), ElementsAre(7)));
  EXPECT_FALSE(ids.workload.is_synthetic());
  // Any text is a prompt, whatever CLI11 makes of brackets, dashes and percent signs elsewhere.
  for (const char* text :
       {"Hello, world", "[a, b]", "{}", "%%", "--tp", "-1", "\"q\"", "a\nb", " "})
    EXPECT_EQ(parse({"--prompt", text}).workload.prompt, text);
  EXPECT_EQ(parse({"--prompts", "p.jsonl"}).workload.prompts_file, "p.jsonl");
  EXPECT_EQ(parse({"--context", "4096"}).workload.prompt_tokens, 1);
  EXPECT_EQ(parse({"--context", "4096", "--prompt-tokens", "8"}).workload.prompt_tokens, 8);
}

TEST(CommandLine, D20_empty_prompt_is_refused) {
  EXPECT_THAT(error_of({"--prompt", ""}), HasSubstr("the prompt is empty"));
  EXPECT_THAT(error_of({"--prompt-ids", ""}), HasSubstr("the prompt is empty"));
}

TEST(CommandLine, mistakes_are_one_line_naming_the_option) {
  const std::vector<std::pair<Args, std::string>> cases{
      {{"--tp", "0"}, "--tp"},
      {{"--tp", "-1"}, "--tp"},
      {{"--tp", "2.0"}, "--tp"},
      {{"--tp", "2x"}, "--tp"},
      {{"--tp", " 2"}, "--tp"},
      {{"--tp", "0x2"}, "--tp"},
      {{"--tp", "99999999999999999999"}, "--tp"},
      {{"--tp", "2", "--tp", "4"}, "--tp"},
      {{"--tp", "2", "4"}, "\"4\""},
      {{"--tp", "--pp", "2"}, "--tp: a value is missing before \"--pp\""},
      {{"--ignore-eos=false"}, "ignore-eos"},
      {{"--tq", "2"}, "\"--tq\""},
      {{"--bat", "2"}, "\"--bat\""},
      {{"--t\x1bp", "2"}, "\\u001b"},
      {{"--prompt-ids", "1,,2"}, "--prompt-ids"},
      {{"--prompt-ids", "1, 2"}, "--prompt-ids"},
      {{"--prompt-ids", "-1"}, "--prompt-ids"},
      {{"--prompt-ids", "4294967296"}, "--prompt-ids"},
      {{"--gen-tokens", "0"}, "--gen-tokens"},
      {{"--prompt-tokens", "0"}, "--prompt-tokens"},
      {{"--repeats", "0"}, "--repeats"},
      {{"--warmup", "-1"}, "--warmup"},
      {{"--temperature", "-0.1"}, "--temperature"},
      {{"--temperature", "nan"}, "--temperature"},
      {{"--temperature", "0,8"}, "--temperature"},
      {{"--top-p", "0"}, "--top-p"},
      {{"--top-p", "1.01"}, "--top-p"},
      {{"--top-p", "inf"}, "--top-p"},
      {{"--timeout", "0"}, "--timeout"},
      {{"--seed", "-1"}, "--seed"},
      {{"--device", "gpu"}, "auto, cuda, cpu, sim"},
      {{"--compute-dtype", "f16"}, "bf16, f32"},
      {{"--weight-dtype", "f16"}, "auto, bf16, f32, int8, int4, fp8"},
      {{"--weight-dtype", "int8", "--weight-group", "64"}, "is not one of 32, 128, row"},
      {{"--weight-dtype", "int8", "--weight-group", "tensor"}, "32, 128, row"},
      {{"--weight-dtype", "int4", "--weight-group", "row"}, "32, 128"},
      {{"--weight-dtype", "fp8", "--weight-group", "32"}, "tensor, row, block"},
      {{"--weight-group", "32"},
       "--weight-group 32: needs --weight-dtype int8, int4 or fp8; it is auto"},
      {{"--weight-group", "row", "--weight-dtype", "bf16"}, "it is bf16"},
      {{"--check", "on"}, "off, layers, full"},
      {{"--layout", "ring"}, "auto, mpi, tcp, shm, nvlink, nvlink-ring, pcie, ib, socket"},
      {{"--cp", "0"}, "--cp"},
      {{"--ep", "1.5"}, "--ep"},
      {{"--cp-layout", "striped"}, "zigzag, contiguous"},
      {{"--expert-exchange", "gather"}, "auto, all-to-all, all-reduce"},
      {{"--tp-comm", "auto"}, "all-reduce, reduce-scatter"},
      {{"--max-step-tokens", "0"}, "--max-step-tokens"},
      {{"--deterministic=1"}, "deterministic"},
      {{"--cluster", ""}, "--cluster"},
      {{"--link-gb-s", "0"}, "--link-gb-s: 0 is not above 0"},
      {{"--link-us", "-1"}, "--link-us: -1 is below 0"},
      {{"--algorithm", "direct"}, "ring, tree, nvls, one-shot, two-shot, hierarchical"},
      {{"--json", ""}, "--json"},
      {{"--inject", "delay"}, "delay:rank=R|all,us=N[,every=N]"},
      {{"--inject", "delay:rank=1"}, "delay:rank=R|all,us=N[,every=N]"},
      {{"--inject", "delay:rank=1,us=5,size=3"}, "delay:rank=R|all,us=N[,every=N]"},
      {{"--inject", "delay:rank=1,us=5,us=6"}, "appears twice"},
      {{"--inject", "delay:rank=-1,us=5"}, "rank"},
      {{"--inject", "delay:rank=1,us=0"}, "us"},
      {{"--inject", "delay:rank=1,us=5,every=0"}, "every"},
      {{"--inject", "explode:rank=1"}, "kill:rank=R[,at=N], stop:rank=R[,at=N]"},
      {{"--inject", "flip:rank=all"}, "rank"},
      {{"--inject", "flip:rank=1,us=5"}, "is not flip:rank=R[,at=N][,bit=B]"},
      {{"--inject", "flip:rank=1,bit=32"}, "bit"},
      {{"--inject", "slow-link:rank=1,gb_s=2"}, "is not slow-link:rank=A,peer=B,gb_s=X"},
      {{"--inject", "slow-link:rank=1,peer=2,gb_s=0"}, "gb_s"},
      {{"--inject", "drop-link:rank=1,peer=1"}, "has one rank at both ends"},
      {{"--inject", "slow-device:rank=1,factor=0.5"}, "0.5 is below 1"},
      {{"--inject", "kill"}, "is not kill:rank=R[,at=N]"},
      {{"--inject", "stop:rank=1,at=0"}, "at"},
  };
  for (const auto& [args, part] : cases)
    EXPECT_THAT(error_of(args), HasSubstr(part)) << testing::PrintToString(args);
  EXPECT_THAT(config_error([] { parse_command_line(Args{"--tp"}); }), HasSubstr("--tp"));
  EXPECT_THAT(config_error([] { parse_command_line(Args{}); }), HasSubstr("--model is missing"));
  EXPECT_THAT(config_error([] {
                parse_command_line(Args{"fly", "--tp", "1"});
              }),
              HasSubstr("unknown command \"fly\""));
}

TEST(CommandLine, every_kind_of_injection) {
  using Kind = Injection::Kind;
  const auto parsed = [](const std::string& text) {
    return std::get<RunConfig>(parse_command_line(Args{"--model", "m", "--inject", text}))
        .inject.at(0);
  };
  EXPECT_EQ(parsed("delay:rank=all,us=7"), (Injection{.rank = -1, .delay_us = 7}));
  EXPECT_EQ(parsed("flip:rank=1"), (Injection{.kind = Kind::flip, .rank = 1}));
  EXPECT_EQ(parsed("flip:rank=1,at=9,bit=31"),
            (Injection{.kind = Kind::flip, .rank = 1, .at = 9, .bit = 31}));
  EXPECT_EQ(parsed("slow-link:rank=1,peer=0,gb_s=0.5"),
            (Injection{.kind = Kind::slow_link, .rank = 1, .peer = 0, .gb_s = 0.5}));
  EXPECT_EQ(parsed("drop-link:peer=3,rank=2"),
            (Injection{.kind = Kind::drop_link, .rank = 2, .peer = 3}));
  EXPECT_EQ(parsed("slow-device:rank=1,factor=2.5"),
            (Injection{.kind = Kind::slow_device, .rank = 1, .factor = 2.5}));
  EXPECT_EQ(parsed("kill:rank=3,at=4"), (Injection{.kind = Kind::kill, .rank = 3, .at = 4}));
  EXPECT_EQ(parsed("stop:rank=3"), (Injection{.kind = Kind::stop, .rank = 3}));
}

TEST(CommandLine, conflicts_are_refused) {
  for (const Args& args : {Args{"--prompt", "a", "--prompt-ids", "1"},
                           Args{"--prompt", "a", "--batch", "2"},
                           Args{"--prompt", "a", "--prompt-tokens", "2"},
                           Args{"--prompt", "a", "--context", "2"},
                           Args{"--prompt-ids", "1", "--batch", "2"},
                           Args{"--prompts", "f", "--prompt", "a"},
                           Args{"--prompts", "f", "--batch", "2"}})
    EXPECT_THAT(error_of(args), HasSubstr("exclude each other")) << testing::PrintToString(args);
  EXPECT_THAT(error_of({"--json", "-", "--csv", "-"}), HasSubstr("standard output"));
  EXPECT_THAT(error_of({"--json", "-", "--trace", "-"}), HasSubstr("standard output"));
  EXPECT_THAT(error_of({"--json", "a", "--csv", "a"}), HasSubstr("both write"));
  EXPECT_NE(error_of({"--logits", "-"}), "");
  EXPECT_NE(error_of({"--virtual-stages", "2"}), "");
}

TEST(CommandLine, what_is_not_built_yet_says_so) {
  for (const Args& args : {Args{"--report", "r.html"}, Args{"serve"}})
    EXPECT_THAT(error_of(args), HasSubstr("not built yet")) << testing::PrintToString(args);
  EXPECT_EQ(error_of({"serve"}), "serve: this command is not built yet");
}

TEST(CommandLine, weight_formats) {
  using namespace weight_formats;
  const auto format_of = [](Args args) {
    args.insert(args.begin(), "--weight-dtype");
    return parse(args).weight_format;
  };
  const std::vector<std::pair<Args, WeightFormat>> formats{
      {{"int8"}, int8_g32},
      {{"int8", "--weight-group", "32"}, int8_g32},
      {{"int8", "--weight-group", "128"}, int8_g128},
      {{"int8", "--weight-group", "row"}, int8_row},
      {{"int4"}, int4_g32},
      {{"int4", "--weight-group", "128"}, int4_g128},
      {{"fp8"}, fp8_row},
      {{"fp8", "--weight-group", "tensor"}, fp8_tensor},
      {{"fp8", "--weight-group", "block"}, fp8_block128},
      {{"bf16"}, DType::BF16},
      {{"f32"}, DType::F32}};
  for (const auto& [args, expected] : formats) {
    EXPECT_EQ(format_of(args), expected) << testing::PrintToString(args);
    EXPECT_EQ(weight_dtype_name(expected), args.front());
  }
  EXPECT_EQ(format_of({"auto"}), std::nullopt);
  EXPECT_EQ(weight_dtype_name(std::nullopt), "auto");
}

TEST(CommandLine, help_and_version) {
  for (const Args& args :
       {Args{"--help"}, Args{"-h"}, Args{"run", "--help"}, Args{"--tp", "2", "-h"}}) {
    const std::string text = std::get<InfoText>(parse_command_line(args)).text;
    for (const char* option : {"--model",
                               "--weights",
                               "--layers",
                               "--tp",
                               "--pp",
                               "--cp",
                               "--dp",
                               "--ep",
                               "--cp-layout",
                               "--expert-exchange",
                               "--tp-comm",
                               "--max-step-tokens",
                               "--deterministic",
                               "--device",
                               "--cluster",
                               "--link-gb-s",
                               "--link-us",
                               "--algorithm",
                               "--layout",
                               "--batch",
                               "--prompt-tokens",
                               "--gen-tokens",
                               "--context",
                               "--prompt",
                               "--prompt-ids",
                               "--prompts",
                               "--microbatches",
                               "--virtual-stages",
                               "--weight-dtype",
                               "--weight-group",
                               "--compute-dtype",
                               "--seed",
                               "--temperature",
                               "--top-p",
                               "--ignore-eos",
                               "--warmup",
                               "--repeats",
                               "--check",
                               "--json",
                               "--csv",
                               "--trace",
                               "--report",
                               "--logits",
                               "--inject",
                               "--timeout",
                               "--threads",
                               "--kv-block-size",
                               "--quiet",
                               "--version"})
      EXPECT_THAT(text, HasSubstr(option));
    EXPECT_THAT(text, AllOf(HasSubstr("default 512"), HasSubstr("default 32")));
  }
  EXPECT_THAT(std::get<InfoText>(parse_command_line(Args{"--version"})).text,
              testing::MatchesRegex("testbed [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

// A decimal comma for C++ streams, and for C where the host has such a locale.
struct CommaPoint : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(CommandLine, D25_numbers_do_not_depend_on_the_locale) {
  const std::locale old = std::locale::global(std::locale(std::locale(), new CommaPoint));
  setlocale(LC_ALL, "de_DE.UTF-8");
  const RunConfig run = parse({"--temperature", "0.8", "--seed", "1234567", "--top-p", "1e-3"});
  const std::string text = canonical_text(run, ModelConfig{});
  const std::string message = error_of({"--batch", "123456789012"});
  setlocale(LC_ALL, "C");
  std::locale::global(old);
  EXPECT_EQ(run.sampling.temperature, 0.8);
  EXPECT_EQ(run.sampling.seed, 1234567U);
  EXPECT_EQ(run.sampling.top_p, 1e-3);
  EXPECT_THAT(text, AllOf(HasSubstr("\"temperature\":0.8"), HasSubstr("\"seed\":1234567")));
  EXPECT_THAT(message, HasSubstr("16777216"));
}

}  // namespace
}  // namespace testbed
