#include "runtime/commands/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/clock.hpp"
#include "runtime/serving/memory_plan.hpp"
#include "runtime/weights/tensor_names.hpp"

namespace testbed {
namespace {

// Load progress on rank 0's terminal: nothing for loads that take less than a moment.
class Progress {
 public:
  explicit Progress(bool shown) : shown_(shown), begin_ns_(now_ns()), last_ns_(begin_ns_) {}
  void operator()(int64_t done, int64_t total) {
    if (!shown_) return;
    constexpr int64_t period_ns = 1'000'000'000;
    const int64_t now = now_ns();
    if (now - last_ns_ < period_ns) return;
    last_ns_ = now;
    fmt::print(stderr,
               "loading weights: {:.0f} % of {:.2f} GB on rank 0, {:.0f} s\n",
               100.0 * static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, total)),
               static_cast<double>(total) * 1e-9,
               static_cast<double>(now - begin_ns_) * 1e-9);
  }

 private:
  bool shown_;
  int64_t begin_ns_;
  int64_t last_ns_;
};

Model load(const RankContext& context, const ModelConfig& model, const WeightSource& source) {
  Progress progress(context.rank == 0 && !context.config.output.quiet);
  std::optional<std::string> error;
  Model loaded;
  try {
    loaded = load_model(context.device,
                        source,
                        model,
                        shard_position(context),
                        resident_weights(context.config),
                        [&](int64_t done, int64_t total) { progress(done, total); });
  } catch (const std::exception& e) {
    error = e.what();
  }
  context.control.agree(error);
  return loaded;
}

}  // namespace

ShardPosition shard_position(const RankContext& context) {
  const Coordinates c = context.coordinates();
  return {.tp = context.mesh.tp,
          .tp_rank = c.tp,
          .n_stages = context.mesh.pp,
          .stage = c.pp,
          .n_virtual_stages = context.config.parallel.virtual_stages};
}

Replica replica_of(const RankContext& context) {
  const int dp = context.coordinates().dp;
  Replica replica{.control = context.control, .rank = context.rank, .ranks = {}, .dp = dp};
  for (int rank = 0; rank < context.mesh.world_size(); ++rank) {
    if (context.mesh.coordinates(rank).dp == dp) replica.ranks.push_back(rank);
  }
  return replica;
}

ResidentWeights resident_weights(const RunConfig& config) {
  if (!config.weight_dtype) return ResidentWeights::as_stored;
  return *config.weight_dtype == DType::F32 ? ResidentWeights::f32 : ResidentWeights::bf16;
}

int64_t weight_block(const WeightSource& source) {
  int64_t block = 1;
  for (const char* name : {"self_attn.o_proj.weight", "mlp.down_proj.weight"}) {
    if (const auto stored = source.find(layer_tensor_name(0, name))) {
      block = std::max(block, dtype_info(stored->dtype).block_elements);
    }
  }
  return block;
}

SchedulerOptions scheduler_options(const RankContext& context, const ModelConfig& model) {
  const RunConfig& config = context.config;
  SchedulerOptions options{.kv_groups = kv_groups(model),
                           .block_size = config.kv_block_size,
                           .n_microbatches = config.parallel.microbatches.value_or(context.mesh.pp),
                           .stop_ids = {}};
  options.run_ahead = context.mesh.pp > 1;
  if (!config.sampling.ignore_eos && !config.workload.is_synthetic()) {
    options.stop_ids = model.eos_ids;
  }
  return options;
}

std::vector<MemoryRecord> plan_memory(const RankContext& context,
                                      const ModelConfig& model,
                                      const WeightSource& source,
                                      const Workload& workload) {
  const std::vector<Request> requests =
      requests_of(workload, context.mesh, context.coordinates().dp);
  const SchedulerOptions scheduler = scheduler_options(context, model);
  const ShardPosition position = shard_position(context);
  const DType compute = context.device.compute_dtype();
  const HeadShard heads = heads_of_rank(model, position);
  const std::vector<int64_t> blocks = blocks_for(requests, scheduler);
  MemoryRecord mine{.rank = context.rank, .capacity_bytes = host_memory_bytes()};
  mine.weights_bytes =
      planned_weights_bytes(source, model, position, resident_weights(context.config), compute);
  const int64_t layer_token = 2 * dtype_bytes(compute, heads.kv_heads.size() * model.head_dim);
  for (const int64_t layer : layers_of_rank(model, position)) {
    mine.kv_bytes_per_token += layer_token;
    for (size_t g = 0; g < blocks.size(); ++g) {
      if (scheduler.kv_groups[g].window != model.layer_windows[static_cast<size_t>(layer)])
        continue;
      mine.kv_pool_bytes += blocks[g] * scheduler.block_size * layer_token;
    }
  }
  int64_t n_rows = 0;
  for (const Request& request : requests) n_rows += static_cast<int64_t>(request.prompt_ids.size());
  n_rows = std::min(n_rows, scheduler.max_step_tokens);
  mine.workspace_bytes = workspace_bytes(
      {.n_tokens = std::max(n_rows, static_cast<int64_t>(requests.size())),
       .n_logits_rows =
           context.config.output.logits ? n_rows : static_cast<int64_t>(requests.size()),
       .d_model = model.d_model,
       .d_ff_local = (model.d_ff + position.tp - 1) / position.tp,
       .heads_local = (heads.heads.size() + heads.kv_heads.size()) * model.head_dim,
       .vocab_size = model.vocab_size,
       .element_bytes = dtype_bytes(compute, 1)});
  return agree_on_memory(context.control, context.machine.host, mine);
}

Session::Session(const RankContext& context,
                 const ModelConfig& model,
                 const WeightSource& source,
                 const Workload& workload,
                 std::vector<MemoryRecord> planned)
    : context_(context),
      requests_(requests_of(workload, context.mesh, context.coordinates().dp)),
      scheduler_(scheduler_options(context, model)),
      replica_(replica_of(context)),
      planned_(std::move(planned)),
      model_(load(context, model, source)),
      kv_(context.device,
          scheduler_.kv_groups,
          blocks_for(requests_, scheduler_),
          layers_of_rank(model, model_.position),
          heads_of_rank(model, model_.position).kv_heads.size(),
          model.head_dim,
          scheduler_.block_size),
      executor_(context.device,
                context.groups,
                model_,
                kv_,
                scheduler_.kv_groups.size(),
                {.sampling = context.config.sampling}) {
  if (context.config.workload.context > 0) kv_.fill_synthetic();
}

GenerationResult Session::generate_once(Timeline* timeline,
                                        int32_t repeat,
                                        const std::function<void(size_t, int32_t)>& on_token) {
  context_.control.barrier();
  return generate(
      replica_,
      executor_,
      requests_,
      {.scheduler = scheduler_, .timeline = timeline, .repeat = repeat, .on_token = on_token});
}

int64_t Session::most_steps() const {
  int64_t n_prompt = 0;
  int64_t n_decode = 0;
  for (const Request& request : requests_) {
    n_prompt += static_cast<int64_t>(request.prompt_ids.size());
    n_decode = std::max(n_decode, request.max_new_tokens);
  }
  return n_prompt / scheduler_.max_step_tokens + 1 + n_decode;
}

std::vector<CapturedRow> Session::generate_with_logits() {
  Executor capturing(context_.device,
                     context_.groups,
                     model_,
                     kv_,
                     scheduler_.kv_groups.size(),
                     {.sampling = context_.config.sampling, .capture_logits = true});
  SchedulerOptions all_rows = scheduler_;
  all_rows.all_prompt_logits = true;
  all_rows.run_ahead = false;  // no row beyond a stop
  generate(replica_, capturing, requests_, {.scheduler = all_rows, .on_token = {}});
  return capturing.take_captured();
}

std::vector<MemoryRecord> Session::memory(const GenerationResult& last) const {
  // Only the scheduling rank of a replica knows how far its pools were filled.
  ByteWriter usage;
  usage.put(last.peak_kv_blocks);
  usage.put(last.peak_kv_tokens);
  const std::vector<Bytes> of_rank = context_.control.all_gather(usage.take());
  std::vector<int64_t> blocks;
  std::vector<int64_t> tokens;
  ByteReader in(of_rank[static_cast<size_t>(replica_.ranks.front())]);
  in.get(blocks);
  in.get(tokens);

  MemoryRecord mine = planned_[static_cast<size_t>(context_.rank)];
  mine.weights_bytes = model_.weights_bytes;
  mine.kv_pool_bytes = kv_.pool_bytes();
  mine.kv_bytes_per_token = kv_.bytes_per_token();
  mine.workspace_bytes = executor_.workspace_bytes();
  for (size_t g = 0; g < blocks.size(); ++g) {
    const int64_t token_bytes = kv_.layer_token_bytes() * kv_.n_layers_in(static_cast<int>(g));
    mine.kv_used_bytes += tokens[g] * token_bytes;
    mine.kv_waste_bytes += (blocks[g] * kv_.block_size() - tokens[g]) * token_bytes;
  }
  ByteWriter out;
  out.put(mine);
  std::vector<MemoryRecord> all;
  for (const Bytes& bytes : context_.control.all_gather(out.take())) {
    ByteReader(bytes).get(all.emplace_back());
  }
  return all;
}

}  // namespace testbed
