#include "runtime/commands/run.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <set>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"
#include "runtime/commands/logits_file.hpp"
#include "runtime/commands/passes.hpp"
#include "runtime/commands/session.hpp"
#include "runtime/commands/workload.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/split.hpp"
#include "runtime/report/atomic_file.hpp"
#include "runtime/report/chrome_trace.hpp"
#include "runtime/report/csv.hpp"
#include "runtime/report/json.hpp"
#include "runtime/report/table.hpp"
#include "runtime/report/text.hpp"
#include "runtime/text/tokenizer.hpp"

namespace testbed {
namespace {

// What a person reads goes to standard output, unless an output file was asked for there.
FILE* terminal(const RunConfig& config) {
  return config.output.stdout_is_taken() ? stderr : stdout;
}

struct OpenModel {
  ModelConfig config;
  std::unique_ptr<WeightSource> source;
};

OpenModel open_model(const RunConfig& run) {
  const ModelLocation location = locate_model(run.model);
  OpenModel model{read_model_config(location), nullptr};
  if (run.layers) model.config = truncated_to(model.config, *run.layers);
  const bool random = run.weights ? *run.weights == "random" : location.kind == ModelKind::preset;
  model.source = random ? make_random_weights(model.config, run.sampling.seed)
                        : open_weights(run.weights.value_or(location.path.string()), model.config);
  return model;
}

// Every rank sees the same files, or the rank that does not is named.
OpenModel open_on_every_rank(const RankContext& context) {
  OpenModel model;
  std::optional<std::string> error;
  try {
    model = open_model(context.config);
  } catch (const Error& e) {
    error = e.what();
  }
  context.control.agree_on_mistake(error);
  return model;
}

// An output that cannot be written is refused now, not after the run.
void check_outputs(const RankContext& context) {
  std::optional<std::string> error;
  const OutputConfig& output = context.config.output;
  try {
    for (const auto* path : {&output.json, &output.csv, &output.trace, &output.logits}) {
      if (context.rank == 0 && path->has_value()) check_writable(**path);
    }
  } catch (const Error& e) {
    error = e.what();
  }
  context.control.agree_on_mistake(error);
}

void check_split(const RankContext& context, const OpenModel& model) {
  if (const auto reason = why_illegal(
          model.config, context.mesh, context.config.parallel, weight_block(*model.source))) {
    throw ConfigError(*reason);
  }
}

std::vector<std::string> labels_of(const RankContext& context,
                                   const ModelConfig& model,
                                   const Session& session,
                                   const PassResults& passes) {
  const RunConfig& run = context.config;
  std::vector<std::string> labels = session.model().notes;
  if (run.layers) labels.push_back(fmt::format("first {} layers only", model.n_layers));
  if (run.workload.context > 0) labels.push_back("synthetic KV cache");
  if (run.workload.is_synthetic()) labels.push_back("synthetic prompts");
  const MachineInfo& machine = context.machine;
  if (machine.ranks_on_host * machine.threads > machine.cores_on_host) {
    labels.push_back(fmt::format(
        "oversubscribed: {} ranks x {} threads on {} cores; wire, wait and bubble not comparable",
        machine.ranks_on_host,
        machine.threads,
        machine.cores_on_host));
  }
  for (const DelayInjection& delay : run.inject) {
    labels.push_back(fmt::format(
        "injected: delay of {} us on rank {}, every {}", delay.delay_us, delay.rank, delay.every));
  }
  if (!passes.repeats_agree) labels.push_back("repeats generated different tokens");
  return labels;
}

std::vector<std::string> gather_text(const RankContext& context, const std::string& mine) {
  std::vector<std::string> all;
  for (const Bytes& bytes : context.control.gather(pack_text(mine), 0)) {
    all.push_back(unpack_text(bytes));
  }
  return all;
}

// hosts, devices and binding of all ranks; on rank 0.
FingerprintRecord fingerprint(const RankContext& context, const ModelConfig& model) {
  FingerprintRecord print;
  std::set<std::string> seen;
  for (const std::string& host : gather_text(context, context.machine.host)) {
    if (seen.insert(host).second) print.hosts.push_back(host);
  }
  print.devices = gather_text(context, context.device.description());
  print.binding = gather_text(context, context.machine.binding);
  print.libraries = context.machine.libraries;
  print.environment = context.machine.environment;
  const std::string text = canonical_text(context.config, model);
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

RunDescription describe(const RankContext& context,
                        const ModelConfig& model,
                        const Session& session,
                        const Workload& workload,
                        const PassResults& passes) {
  const RunConfig& run = context.config;
  return {.device = std::string(context.device.kind()),
          .labels = labels_of(context, model, session, passes),
          .model = model.name,
          .layers = static_cast<int>(model.n_layers),
          .weight_dtype = run.weight_dtype ? std::string(dtype_name(*run.weight_dtype)) : "auto",
          .compute_dtype = std::string(dtype_name(context.device.compute_dtype())),
          .parallel = {.tp = context.mesh.tp,
                       .pp = context.mesh.pp,
                       .cp = context.mesh.cp,
                       .dp = context.mesh.dp,
                       .ep = run.parallel.ep,
                       .microbatches = run.parallel.microbatches.value_or(context.mesh.pp),
                       .virtual_stages = run.parallel.virtual_stages},
          .requests = request_records(workload, passes),
          .options = {{"warmup", std::to_string(run.warmup)},
                      {"repeats", std::to_string(run.repeats)},
                      {"seed", std::to_string(run.sampling.seed)}}};
}

// Writes tokens to the terminal as they come, whole characters only.
class TextStream {
 public:
  TextStream(const Workload& workload, const RunConfig& config)
      : shown_(workload.tokenizer && !config.output.quiet && workload.requests.size() == 1),
        out_(terminal(config)) {
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

void write_reports(const RankContext& context, const RunRecord& record, const PassResults& passes) {
  const OutputConfig& output = context.config.output;
  if (output.json) write_file(*output.json, to_json(record));
  if (output.csv) write_file(*output.csv, to_csv(record));
  if (output.trace) write_file(*output.trace, chrome_trace(passes.timelines, context.mesh));
  if (!output.quiet) fmt::print(terminal(context.config), "{}", to_table(record));
}

void announce(const RankContext& context, const ModelConfig& model) {
  const RunConfig& run = context.config;
  if (context.rank != 0 || run.output.quiet) return;
  FILE* out = terminal(run);
  fmt::print(out,
             "testbed {}: {}, {} layers, {} on {} rank{} (tp {}, pp {}, dp {}{}), {}\n",
             TESTBED_VERSION,
             printable(model.name),
             model.n_layers,
             context.device.kind(),
             context.mesh.world_size(),
             context.mesh.world_size() == 1 ? "" : "s",
             context.mesh.tp,
             context.mesh.pp,
             context.mesh.dp,
             run.parallel.dp || context.mesh.dp == 1 ? "" : " inferred",
             context.device.description());
  std::fflush(out);
}

ChecksRecord check(const RankContext& context, const OpenModel& model) {
  const ShardPosition position = shard_position(context);
  return check_against_one_rank(
      {.mode = context.config.check,
       .config = model.config,
       .source = *model.source,
       .wanted = resident_weights(context.config),
       .position = position,
       .n_microbatches = context.config.parallel.microbatches.value_or(context.mesh.pp),
       .groups = context.groups,
       .replica = replica_of(context),
       .device = context.device,
       .make_device = context.make_device});
}

}  // namespace

void run_rank(const RankContext& context) {
  const OpenModel model = open_on_every_rank(context);
  check_split(context, model);
  const Workload workload = make_workload(context, model.config);
  announce(context, model.config);
  check_outputs(context);
  std::vector<MemoryRecord> planned = plan_memory(context, model.config, *model.source, workload);
  const ChecksRecord checks = check(context, model);

  Session session(context, model.config, *model.source, workload, std::move(planned));
  if (context.config.output.logits) {
    write_logits(context.control,
                 *context.config.output.logits,
                 workload.requests,
                 session.generate_with_logits(),
                 model.config.vocab_size);
  }
  TextStream stream(workload, context.config);
  PassResults passes =
      run_passes(context, session, [&](size_t /*request*/, int32_t id) { stream.token(id); });
  stream.finish();

  const std::vector<MemoryRecord> memory = session.memory(passes.last);
  FingerprintRecord print = fingerprint(context, model.config);
  if (context.rank != 0) return;
  AnalysisInput input{.run = describe(context, model.config, session, workload, passes),
                      .mesh = context.mesh,
                      .timelines = passes.timelines,
                      .timed = passes.timed,
                      .peaks = passes.peaks,
                      .transports = context.transports};
  input.run.memory = memory;
  input.run.checks = checks;
  input.run.fingerprint = std::move(print);
  write_reports(context, analyse(input), passes);
}

}  // namespace testbed
