#include "runtime/commands/rank_plan.hpp"

#include <algorithm>

#include "kernels/base/errors.hpp"
#include "runtime/serving/memory_plan.hpp"

namespace testbed {

ResidentWeights resident_weights(const RunConfig& config) {
  const bool gpu = config.device == DeviceChoice::cuda;
  const ResidentWeights as_stored{gpu ? PlainWeights::for_gpu : PlainWeights::as_stored};
  if (!config.weight_format) return as_stored;
  const WeightFormat& format = *config.weight_format;
  if (format.is_quantised()) return {as_stored.plain, format};
  if (gpu && format.dtype != DType::F32 && config.compute_dtype == DType::F32) {
    throw ConfigError("--device cuda multiplies bf16 weights in bf16: --compute-dtype bf16");
  }
  return {format.dtype == DType::F32 ? PlainWeights::f32 : PlainWeights::bf16};
}

int64_t weight_block(const RunConfig& config, const RunInputs& inputs) {
  return column_granularity(
      *inputs.source, inputs.model, resident_weights(config), config.compute_dtype);
}

SchedulerOptions scheduler_options(const RunConfig& config,
                                   const ModelConfig& model,
                                   const Mesh& mesh) {
  SchedulerOptions options{.kv_groups = kv_groups(model),
                           .block_size = config.kv_block_size,
                           .n_microbatches = config.parallel.microbatches.value_or(mesh.pp),
                           .stop_ids = {},
                           .cp = mesh.cp,
                           .cp_placement = config.parallel.cp_placement};
  options.max_step_tokens = config.max_step_tokens.value_or(options.max_step_tokens * mesh.cp);
  options.run_ahead = mesh.pp > 1;
  if (!config.sampling.ignore_eos && !config.workload.is_synthetic()) {
    options.stop_ids = model.eos_ids;
  }
  return options;
}

SchedulerOptions scheduler_options(const RunConfig& config,
                                   const ModelConfig& model,
                                   const Mesh& mesh,
                                   const std::vector<Request>& requests) {
  SchedulerOptions options = scheduler_options(config, model, mesh);
  options.pool_blocks = blocks_for(requests, options);
  return options;
}

namespace {

// The cache's bytes: what a token costs in the layers held here, and the pools.
void add_cache(const ModelConfig& model,
               const ShardPosition& position,
               const SchedulerOptions& scheduler,
               DType compute,
               MemoryRecord& mine) {
  for (const int64_t layer : layers_of_rank(model, position)) {
    const int64_t token_bytes =
        stored_token_bytes(model, layer, position.tp, position.tp_rank, compute);
    mine.kv_bytes_per_token += token_bytes;
    for (size_t g = 0; g < scheduler.kv_groups.size(); ++g) {
      if (scheduler.kv_groups[g].window != model.layer(layer).window) continue;
      mine.kv_pool_bytes += scheduler.pool_blocks[g] * scheduler.block_size * token_bytes;
    }
  }
}

// Rows are dealt out by blocks: a rank may have up to a block of each request more than its share,
// and decodes them all.
int64_t rows_of_rank(int64_t n_rows, int64_t n_requests, const SchedulerOptions& scheduler) {
  if (scheduler.cp == 1) return std::max(n_rows, n_requests);
  const int64_t share = (n_rows + scheduler.cp - 1) / scheduler.cp;
  return std::max(std::min(n_rows, share + n_requests * scheduler.block_size), n_requests);
}

// What the rows of one step look back on: the prompt in progress, prompts that begin in the step,
// and what was cached before either.
int64_t context_tokens(const std::vector<Request>& requests, int64_t max_step_tokens) {
  int64_t cached = 0;
  int64_t prompts = 0;
  int64_t longest = 0;
  for (const Request& request : requests) {
    const auto n = static_cast<int64_t>(request.prompt_ids.size());
    cached += request.cached_tokens;
    prompts += n;
    longest = std::max(longest, n);
  }
  return cached + std::min(prompts, longest + max_step_tokens);
}

}  // namespace

MemoryRecord planned_memory(const RunConfig& config,
                            const RunInputs& inputs,
                            const Mesh& mesh,
                            int rank) {
  const ModelConfig& model = inputs.model;
  const std::vector<Request> requests =
      requests_of(inputs.workload, mesh, mesh.coordinates(rank).dp);
  const SchedulerOptions scheduler = scheduler_options(config, model, mesh, requests);
  const ShardPosition position = shard_position(config.parallel, mesh, rank);
  const DType compute = config.compute_dtype;
  MemoryRecord mine{.rank = rank};
  mine.weights_bytes =
      planned_weights_bytes(*inputs.source, model, position, resident_weights(config), compute);
  add_cache(model, position, scheduler, compute, mine);
  int64_t n_rows = 0;
  for (const Request& request : requests) n_rows += static_cast<int64_t>(request.prompt_ids.size());
  n_rows = std::min(n_rows, scheduler.max_step_tokens);
  mine.workspace_bytes = planned_workspace(
      model,
      position,
      {.n_rows = rows_of_rank(n_rows, static_cast<int64_t>(requests.size()), scheduler),
       .n_logits_rows = config.output.logits ? n_rows : static_cast<int64_t>(requests.size()),
       .context_tokens = context_tokens(requests, scheduler.max_step_tokens),
       .block_size = scheduler.block_size},
      compute);
  return mine;
}

}  // namespace testbed
