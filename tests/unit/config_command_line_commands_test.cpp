// The command lines of sweep, compare, plan and probe; run's is in config_command_line_test.cpp.
#include "runtime/config/command_line.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using test::config_error;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Args = std::vector<std::string>;

template <typename Config>
Config parse(const char* command, Args args) {
  args.insert(args.begin(), command);
  return std::get<Config>(parse_command_line(args));
}
SweepConfig sweep(Args args) {
  args.insert(args.end(), {"--model", "llama3-8b"});
  return parse<SweepConfig>("sweep", args);
}
std::string error_of(const char* command, Args args) {
  args.insert(args.begin(), command);
  return config_error([&] { parse_command_line(args); });
}
std::string sweep_error(const Args& args) {
  return config_error([&] { sweep(args); });
}

TEST(CommandLineSweep, defaults_are_one_simulated_point) {
  const SweepConfig config = sweep({});
  EXPECT_THAT(config.tp, ElementsAre(1));
  EXPECT_THAT(config.pp, ElementsAre(1));
  EXPECT_THAT(config.cp, ElementsAre(1));
  EXPECT_THAT(config.dp, ElementsAre(1));
  EXPECT_THAT(config.ep, ElementsAre(1));
  EXPECT_THAT(config.clusters, ElementsAre("dgx-h100"));
  EXPECT_THAT(config.batch, ElementsAre(1));
  EXPECT_THAT(config.context, ElementsAre(0));
  EXPECT_THAT(config.prompt_tokens, ElementsAre(512));
  EXPECT_EQ(config.best, SweepConfig::Best::none);
  RunConfig base;
  base.model = "llama3-8b";
  base.device = DeviceChoice::sim;
  base.warmup = 0;
  base.repeats = 1;
  base.check = CheckMode::off;
  EXPECT_EQ(config.base, base);
}

TEST(CommandLineSweep, lists_and_the_rest_are_stored) {
  const SweepConfig config =
      sweep({"--tp",        "1,2,4",    "--pp",           "1,2", "--dp",      "8",
             "--cluster",   "a,b.toml", "--batch",        "1,8", "--context", "1024,131072",
             "--device",    "auto",     "--gen-tokens",   "4",   "--link-us", "1.5",
             "--algorithm", "ring",     "--json",         "-",   "--csv",     "s.csv",
             "--layers",    "2",        "--microbatches", "4",   "--quiet"});
  EXPECT_THAT(config.tp, ElementsAre(1, 2, 4));
  EXPECT_THAT(config.pp, ElementsAre(1, 2));
  EXPECT_THAT(config.dp, ElementsAre(8));
  EXPECT_THAT(config.clusters, ElementsAre("a", "b.toml"));
  EXPECT_THAT(config.batch, ElementsAre(1, 8));
  EXPECT_THAT(config.context, ElementsAre(1024, 131072));
  EXPECT_THAT(config.prompt_tokens, ElementsAre(1)) << "as run's, with --context";
  EXPECT_EQ(config.base.device, DeviceChoice::sim);
  EXPECT_EQ(config.base.workload.gen_tokens, 4);
  EXPECT_EQ(config.base.cluster.link_us, 1.5);
  EXPECT_EQ(config.base.cluster.algorithm, "ring");
  EXPECT_EQ(config.base.output, (OutputConfig{.json = "-", .csv = "s.csv", .quiet = true}));
  EXPECT_EQ(config.base.layers, 2);
  EXPECT_EQ(config.base.parallel.microbatches, 4);
  EXPECT_THAT(sweep({"--prompt-tokens", "8,64", "--context", "4"}).prompt_tokens,
              ElementsAre(8, 64));
  EXPECT_EQ(sweep({"--best", "throughput"}).best, SweepConfig::Best::throughput);
  EXPECT_TRUE(sweep({"--best", "tpot"}).ep.empty());
  EXPECT_EQ(sweep({"--best", "tpot", "--cp", "1,2", "--ep", "1"}).cp, (std::vector<int>{1, 2}));
  EXPECT_EQ(sweep({"--best", "tpot", "--cp", "1,2", "--ep", "1"}).ep, std::vector<int>{1});
}

TEST(CommandLineSweep, context_and_expert_degrees_are_lists) {
  const SweepConfig config = sweep({"--cp",
                                    "1,4",
                                    "--ep",
                                    "8,16",
                                    "--cp-layout",
                                    "contiguous",
                                    "--expert-exchange",
                                    "all-to-all",
                                    "--tp-comm",
                                    "reduce-scatter",
                                    "--max-step-tokens",
                                    "512"});
  EXPECT_THAT(config.cp, ElementsAre(1, 4));
  EXPECT_THAT(config.ep, ElementsAre(8, 16));
  EXPECT_EQ(config.base.parallel.cp_placement, CpPlacement::contiguous);
  EXPECT_EQ(config.base.parallel.expert_exchange, ExpertExchange::all_to_all);
  EXPECT_EQ(config.base.parallel.tp_comm, TpComm::reduce_scatter);
  EXPECT_EQ(config.base.max_step_tokens, 512);
}

TEST(CommandLineSweep, mistakes_name_the_option) {
  const std::vector<std::pair<Args, std::string>> cases{
      {{"--tp", "1,,2"}, "--tp"},
      {{"--tp", "1, 2"}, "--tp"},
      {{"--tp", "0,1"}, "--tp"},
      {{"--tp", "1,2,1"}, "--tp: a value of \"1,2,1\" appears twice"},
      {{"--batch", ""}, "--batch"},
      {{"--cluster", "a,,b"}, "--cluster: \"a,,b\" has an empty name"},
      {{"--cluster", "a,a"}, "appears twice"},
      {{"--best", "latency"}, "tpot, throughput"},
      {{"--best", "tpot", "--tp", "2"}, "--best and --tp exclude each other"},
      {{"--device", "cpu"}, "mpirun fixes the number of ranks"},
      {{"--device", "cuda"}, "mpirun fixes the number of ranks"},
      {{"--device", "gpu"}, "auto, sim"},
      {{"--cp", "1,0"}, "--cp"},
      {{"--ep", "2,2"}, "--ep: a value of \"2,2\" appears twice"},
      {{"--deterministic"}, "--deterministic"},
      {{"--virtual-stages", "2", "--pp", "1,2"}, "--virtual-stages"},
      {{"--json", "-", "--csv", "-"}, "both write to standard output"},
      {{"--trace", "t.json"}, "\"--trace\""},
      {{"stray"}, "\"stray\""},
  };
  for (const auto& [args, part] : cases)
    EXPECT_THAT(sweep_error(args), HasSubstr(part)) << testing::PrintToString(args);
  EXPECT_THAT(error_of("sweep", {}), HasSubstr("--model is missing"));
}

TEST(CommandLineCompare, takes_two_files) {
  const auto config = parse<CompareConfig>("compare", {"a.json", "b.json", "--json", "c.json"});
  EXPECT_EQ(config.a, "a.json");
  EXPECT_EQ(config.b, "b.json");
  EXPECT_EQ(config.output.json, "c.json");
  EXPECT_FALSE(config.output.quiet);
  EXPECT_THAT(error_of("compare", {}), HasSubstr("A.json is missing"));
  EXPECT_THAT(error_of("compare", {"a.json"}), HasSubstr("B.json is missing"));
  EXPECT_THAT(error_of("compare", {"a", "b", "c"}), HasSubstr("\"c\""));
  EXPECT_THAT(error_of("compare", {"a", "b", "--tp", "2"}), HasSubstr("\"--tp\""));
}

TEST(CommandLinePlan, options_are_stored) {
  const auto config = parse<PlanConfig>("plan",
                                        {"--model",
                                         "llama3-70b",
                                         "--layers",
                                         "3",
                                         "--cluster",
                                         "c.toml",
                                         "--device",
                                         "h200",
                                         "--tp",
                                         "8",
                                         "--pp",
                                         "2",
                                         "--dp",
                                         "4",
                                         "--cp",
                                         "1",
                                         "--ep",
                                         "1",
                                         "--batch",
                                         "16",
                                         "--context",
                                         "4096",
                                         "--prompt-tokens",
                                         "100",
                                         "--claims",
                                         "claims.md",
                                         "--weight-dtype",
                                         "int4",
                                         "--json",
                                         "p.json",
                                         "--quiet"});
  EXPECT_EQ(config.model, "llama3-70b");
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.cluster, "c.toml");
  EXPECT_EQ(config.device, "h200");
  EXPECT_EQ(config.parallel, (ParallelConfig{.tp = 8, .pp = 2, .dp = 4}));
  EXPECT_EQ(config.batch, 16);
  EXPECT_EQ(config.context, 4096);
  EXPECT_EQ(config.prompt_tokens, 100);
  EXPECT_EQ(config.claims, "claims.md");
  EXPECT_EQ(config.weight_format, weight_formats::int4_g32);
  EXPECT_EQ(config.output, (OutputConfig{.json = "p.json", .quiet = true}));
}

TEST(CommandLinePlan, needs_a_model_or_claims) {
  EXPECT_THAT(error_of("plan", {}), HasSubstr("--model is missing"));
  EXPECT_EQ(parse<PlanConfig>("plan", {"--claims", "c.md"}).model, "");
  EXPECT_FALSE(parse<PlanConfig>("plan", {"--model", "m", "--weight-dtype", "auto"}).weight_format);
  EXPECT_THAT(error_of("plan", {"--claims", "a", "--json", "a"}), HasSubstr("both write"));
  EXPECT_THAT(error_of("plan", {"--claims", "-"}), HasSubstr("not standard output"));
  EXPECT_THAT(error_of("plan", {"--model", "m", "--weight-dtype", "fp4"}),
              HasSubstr("auto, bf16, f32, int8, int4, fp8"));
  const auto split = parse<PlanConfig>("plan", {"--model", "m", "--cp", "2", "--ep", "4"});
  EXPECT_EQ(split.parallel.cp, 2);
  EXPECT_EQ(split.parallel.ep, 4);
}

TEST(CommandLineProbe, options_are_stored) {
  const auto config = parse<ProbeConfig>(
      "probe",
      {"--device",  "sim", "--cluster",       "dgx-a100", "--link-gb-s", "100",  "--link-us", "2",
       "--threads", "3",   "--compute-dtype", "f32",      "--max-bytes", "4096", "--timeout", "9",
       "--json",    "-",   "--toml",          "here.toml"});
  EXPECT_EQ(config.device, DeviceChoice::sim);
  EXPECT_EQ(config.cluster,
            (ClusterConfig{.name = "dgx-a100", .link_gb_s = 100.0, .link_us = 2.0}));
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.compute_dtype, DType::F32);
  EXPECT_EQ(config.most_bytes, 4096);
  EXPECT_EQ(config.timeout_s, 9);
  EXPECT_EQ(config.toml, "here.toml");
  EXPECT_EQ(config.output.json, "-");
  EXPECT_EQ(parse<ProbeConfig>("probe", {}).most_bytes, 1 << 30);
  EXPECT_FALSE(config.allow_shared_gpu);
  EXPECT_TRUE(parse<ProbeConfig>("probe", {"--allow-shared-gpu"}).allow_shared_gpu);
  EXPECT_THAT(error_of("probe", {"--toml", "-"}), HasSubstr("not standard output"));
  EXPECT_THAT(error_of("probe", {"--max-bytes", "1e9"}), HasSubstr("--max-bytes"));
}

TEST(CommandLineProbe, an_acceptance_profile_may_be_of_some_stages) {
  const auto config = parse<ProbeConfig>(
      "probe", {"--acceptance", "p.toml", "--stage", "links,model", "--model", "llama3-8b"});
  EXPECT_THAT(config.stages, ElementsAre("links", "model"));
  EXPECT_EQ(config.model, "llama3-8b");
  EXPECT_THAT(error_of("probe", {"--acceptance", "p.toml", "--stage", "corruption"}),
              HasSubstr("is not one of device, links, collectives, model"));
  for (const char* option : {"--stage", "--model"}) {
    EXPECT_THAT(error_of("probe", {option, "links"}), HasSubstr("needs --acceptance"));
  }
}

TEST(CommandLineCommands, each_has_its_help) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> commands{
      {"sweep", {"--best", "--tp", "--cluster", "--json", "--csv", "--algorithm"}},
      {"compare", {"A.json", "B.json", "--json"}},
      {"plan", {"--claims", "--context", "--device", "--weight-dtype"}},
      {"probe", {"--toml", "--max-bytes", "--cluster"}}};
  for (const auto& [command, options] : commands) {
    const std::string text = std::get<InfoText>(parse_command_line(Args{command, "--help"})).text;
    EXPECT_THAT(text, HasSubstr(std::string("testbed ") + command));
    for (const char* option : options) EXPECT_THAT(text, HasSubstr(option)) << command;
    EXPECT_THAT(std::get<InfoText>(parse_command_line(Args{command, "--version"})).text,
                StartsWith("testbed "));
  }
}

}  // namespace
}  // namespace testbed
