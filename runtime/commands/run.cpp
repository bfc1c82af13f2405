#include "runtime/commands/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <sstream>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"
#include "runtime/commands/logits_file.hpp"
#include "runtime/commands/outputs.hpp"
#include "runtime/commands/passes.hpp"
#include "runtime/commands/session.hpp"
#include "runtime/config/split.hpp"
#include "runtime/report/atomic_file.hpp"
#include "runtime/report/chrome_trace.hpp"
#include "runtime/report/csv.hpp"
#include "runtime/report/json.hpp"
#include "runtime/report/table.hpp"
#include "runtime/report/text.hpp"
#include "runtime/text/tokenizer.hpp"

namespace testbed {

void check_outputs(const OutputConfig& output, ControlChannel& control) {
  std::optional<std::string> error;
  try {
    if (control.rank() == 0) {
      check_all_writable({&output.json, &output.csv, &output.trace, &output.logits});
    }
  } catch (const Error& e) {
    error = e.what();
  }
  control.agree_on_mistake(error);
}

void write_reports(const OutputConfig& output, const RunOutcome& outcome, const Mesh& mesh) {
  if (output.json) write_file(*output.json, to_json(outcome.record));
  if (output.csv) write_file(*output.csv, to_csv(outcome.record));
  if (output.trace) {
    write_file(*output.trace, chrome_trace(outcome.timelines, mesh, outcome.record.run.simulated));
  }
  if (!output.quiet) fmt::print(terminal(output), "{}", to_table(outcome.record));
}

namespace {

// Products with codes of integers have integers on both sides (kernels/cpu/linear_x.hpp).
void add_activation_labels(const Device& device,
                           const Model& model,
                           std::vector<std::string>& labels) {
  if (device.kind() != "cpu" || device.compute_dtype() != DType::BF16 ||
      !multiplies_in_integers(model.quantised_formats)) {
    return;
  }
  std::set<std::string_view> codings;
  for (const WeightFormat& format : model.quantised_formats) {
    if (format.coding != WeightCoding::fp8) codings.insert(weight_dtype_name(format));
  }
  for (const std::string_view coding : codings) {
    labels.push_back(
        fmt::format("{} weights: activations quantised to int8 in groups of 32", coding));
  }
  labels.emplace_back("MFU is against the peak of int8 products");
}

std::vector<std::string> labels_of(const RankContext& context,
                                   std::vector<std::string> labels,
                                   const PassResults& passes) {
  const RunConfig& run = context.config;
  if (run.layers) {
    labels.push_back(fmt::format("first {} layers only", context.inputs.model.n_layers));
  }
  if (run.workload.context > 0) labels.push_back("synthetic KV cache");
  if (run.workload.is_synthetic()) labels.push_back("synthetic prompts");
  const MachineInfo& machine = context.machine;
  labels.insert(labels.end(), machine.labels.begin(), machine.labels.end());
  if (machine.ranks_on_host * machine.threads > machine.cores_on_host) {
    labels.push_back(fmt::format(
        "oversubscribed: {} ranks x {} threads on {} cores; wire, wait and bubble not comparable",
        machine.ranks_on_host,
        machine.threads,
        machine.cores_on_host));
  }
  for (const Injection& injection : run.inject) labels.push_back(injection_label(injection));
  if (run.deterministic) {
    const std::string agreed =
        "; two generations and all ranks of each tp group agreed in every bit";
    labels.push_back(context.virtual_time ? "deterministic: collectives that sum in a fixed order"
                     : context.device.kind() == "cuda"
                         ? "deterministic: NCCL without NVLS, our sums in rank order" + agreed
                         : "deterministic: sums in rank order" + agreed);
  }
  if (!passes.repeats_agree) labels.push_back("repeats generated different tokens");
  return labels;
}

// What became of the weights of all ranks, and what was done to them on purpose, each once; on rank
// 0. Stages may hold unlike matrices.
std::vector<std::string> rank_labels(const RankContext& context, const Model& model) {
  std::vector<std::string> mine = model.notes;
  add_activation_labels(context.device, model, mine);
  if (context.machine.deeds) {
    const std::vector<std::string> deeds = context.machine.deeds();
    mine.insert(mine.end(), deeds.begin(), deeds.end());
  }
  std::vector<std::string> labels;
  for (const std::string& of_rank :
       gather_text(context.control, fmt::format("{}", fmt::join(mine, "\n")))) {
    std::istringstream lines(of_rank);
    for (std::string label; std::getline(lines, label);) {
      if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
    }
  }
  return labels;
}

// hosts, devices and binding of all ranks; on rank 0.
FingerprintRecord fingerprint(const RankContext& context) {
  FingerprintRecord print;
  std::set<std::string> seen;
  for (const std::string& host : gather_text(context.control, context.machine.host)) {
    if (seen.insert(host).second) print.hosts.push_back(host);
  }
  print.devices = gather_text(context.control, context.device.description());
  print.binding = gather_text(context.control, context.machine.binding);
  print.libraries = context.machine.libraries;
  print.environment = context.machine.environment;
  if (auto driver = print.environment.extract("driver")) print.driver = driver.mapped();
  const std::string text = canonical_text(context.config, context.inputs.model);
  print.config_hash =
      fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(text.data(), text.size()))));
  print.version = TESTBED_VERSION;
  return print;
}

std::vector<RequestRecord> request_records(const Workload& workload, const PassResults& passes) {
  std::vector<RequestRecord> records;
  for (size_t i = 0; i < workload.requests.size(); ++i) {
    RequestRecord& record = records.emplace_back();
    record.prompt_tokens = static_cast<int64_t>(workload.requests[i].prompt_ids.size());
    record.ids = passes.generated[i];
    record.generated_tokens = static_cast<int64_t>(record.ids.size());
    if (workload.tokenizer) record.text = workload.tokenizer->decode(record.ids);
  }
  return records;
}

ExpertsDescription experts_of_model(const ModelConfig& model) {
  if (!model.moe) return {};
  return {.n_experts = model.moe->n_experts, .top_k = model.moe->routing.top_k};
}

// What a way of sharding was; "none" where there was nothing to share.
std::string placement_name(const RankContext& context) {
  if (context.mesh.cp == 1) return "none";
  return std::string(cp_placement_name(context.config.parallel.cp_placement));
}

std::string tp_comm_name(const RankContext& context) {
  if (context.mesh.tp == 1) return "none";
  return std::string(tp_comm_name(context.config.parallel.tp_comm));
}

std::string exchange_name(const RankContext& context) {
  if (context.mesh.ep == 1) return "none";
  return exchanges_tokens(context.config.parallel, context.mesh) ? "all-to-all" : "all-reduce";
}

// How decode steps were given to the device.
std::string decode_execution(const RankContext& context) {
  if (replays_decoding(context.device, context.inputs.model, context.mesh.cp)) return "graph";
  if (context.device.captures()) {
    return context.inputs.model.moe ? "eager: the host routes tokens to experts" : "eager: --cp";
  }
  if (!context.config.inject.empty()) return "eager: --inject";
  return "eager";
}

std::map<std::string, std::string> options_of(const RankContext& context) {
  std::map<std::string, std::string> options = context.device.facts();
  options["warmup"] = std::to_string(context.config.warmup);
  options["repeats"] = std::to_string(context.config.repeats);
  options["seed"] = std::to_string(context.config.sampling.seed);
  if (context.device.kind() == "cuda") options["decode_execution"] = decode_execution(context);
  return options;
}

RunDescription describe(const RankContext& context,
                        std::vector<std::string> rank_labels,
                        const PassResults& passes) {
  const RunConfig& run = context.config;
  const ModelConfig& model = context.inputs.model;
  return {.device = std::string(context.device.kind()),
          .labels = labels_of(context, std::move(rank_labels), passes),
          .model = model.name,
          .layers = static_cast<int>(model.n_layers),
          .weight_dtype = std::string(weight_dtype_name(run.weight_format)),
          .compute_dtype = std::string(dtype_name(context.device.compute_dtype())),
          .parallel = {.tp = context.mesh.tp,
                       .pp = context.mesh.pp,
                       .cp = context.mesh.cp,
                       .dp = context.mesh.dp,
                       .ep = context.mesh.ep,
                       .microbatches = run.parallel.microbatches.value_or(context.mesh.pp),
                       .virtual_stages = run.parallel.virtual_stages,
                       .cp_placement = placement_name(context),
                       .expert_exchange = exchange_name(context),
                       .tp_comm = tp_comm_name(context)},
          .experts = experts_of_model(model),
          .requests = request_records(context.inputs.workload, passes),
          .options = options_of(context)};
}

// Writes tokens to the terminal as they come, whole characters only.
class TextStream {
 public:
  TextStream(const Workload& workload, const RunConfig& config)
      : shown_(workload.tokenizer && !config.output.quiet && workload.requests.size() == 1),
        out_(terminal(config.output)) {
    if (shown_) decoder_ = std::make_unique<StreamDecoder>(*workload.tokenizer);
  }
  void token(int32_t id) {
    if (!shown_) return;
    write(decoder_->push(id));
  }
  void finish() {
    if (!shown_) return;
    write(decoder_->finish());
    write("\n\n");
  }

 private:
  void write(const std::string& text) {
    fmt::print(out_, "{}", text);
    std::fflush(out_);
  }
  bool shown_;
  FILE* out_;
  std::unique_ptr<StreamDecoder> decoder_;
};

void announce(const RankContext& context) {
  const RunConfig& run = context.config;
  const ModelConfig& model = context.inputs.model;
  if (context.rank != 0 || run.output.quiet) return;
  FILE* out = terminal(run.output);
  fmt::print(
      out,
      "testbed {}: {}, {} layers, {} on {} rank{} (tp {}, pp {}, cp {}, dp {}{}, ep {}), {}\n",
      TESTBED_VERSION,
      printable(model.name),
      model.n_layers,
      context.device.kind(),
      context.mesh.world_size(),
      context.mesh.world_size() == 1 ? "" : "s",
      context.mesh.tp,
      context.mesh.pp,
      context.mesh.cp,
      context.mesh.dp,
      run.parallel.dp || context.mesh.dp == 1 ? "" : " inferred",
      context.mesh.ep,
      context.device.description());
  std::fflush(out);
}

ChecksRecord check(const RankContext& context) {
  return check_against_one_rank(
      {.mode = context.virtual_time ? CheckMode::off : context.config.check,
       .config = context.inputs.model,
       .source = *context.inputs.source,
       .wanted = resident_weights(context.config),
       .position = shard_position(context.config.parallel, context.mesh, context.rank),
       .n_microbatches = context.config.parallel.microbatches.value_or(context.mesh.pp),
       .cp_placement = context.config.parallel.cp_placement,
       .groups = context.groups,
       .replica = replica_of(context),
       .device = context.device,
       .make_device = context.make_device});
}

}  // namespace

std::optional<RunOutcome> run_rank(const RankContext& context) {
  announce(context);
  const ChecksRecord checks = check(context);
  Session session(context);
  if (context.config.output.logits) {
    write_logits(context.control,
                 *context.config.output.logits,
                 context.inputs.workload.requests,
                 session.generate_with_logits(),
                 context.inputs.model.vocab_size);
  }
  TextStream stream(context.inputs.workload, context.config);
  PassResults passes =
      run_passes(context, session, [&](size_t /*request*/, int32_t id) { stream.token(id); });
  stream.finish();

  std::map<Axis, std::string> transports = context.transports();
  std::vector<MemoryRecord> memory = session.memory(passes.last);
  FingerprintRecord print = fingerprint(context);
  std::vector<std::string> of_ranks = rank_labels(context, session.model());
  if (context.rank != 0) return std::nullopt;
  AnalysisInput input{.run = describe(context, std::move(of_ranks), passes),
                      .mesh = context.mesh,
                      .timelines = std::move(passes.timelines),
                      .timed = std::move(passes.timed),
                      .peaks = std::move(passes.peaks),
                      .transports = std::move(transports),
                      .host_transports = context.host_transports,
                      .protocol_of = context.protocol_of,
                      .counters = std::move(passes.counters)};
  input.run.memory = std::move(memory);
  input.run.checks = checks;
  input.run.fingerprint = std::move(print);
  RunRecord record = analyse(input);
  return RunOutcome{std::move(record), std::move(input.timelines)};
}

}  // namespace testbed
