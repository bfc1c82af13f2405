#include "runtime/commands/rank_plan.hpp"

#include <algorithm>

#include "runtime/serving/memory_plan.hpp"
#include "runtime/weights/tensor_names.hpp"

namespace testbed {

ShardPosition shard_position(const RunConfig& config, const Mesh& mesh, int rank) {
  const Coordinates c = mesh.coordinates(rank);
  return {.tp = mesh.tp,
          .tp_rank = c.tp,
          .n_stages = mesh.pp,
          .stage = c.pp,
          .n_virtual_stages = config.parallel.virtual_stages};
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

SchedulerOptions scheduler_options(const RunConfig& config,
                                   const ModelConfig& model,
                                   const Mesh& mesh) {
  SchedulerOptions options{.kv_groups = kv_groups(model),
                           .block_size = config.kv_block_size,
                           .n_microbatches = config.parallel.microbatches.value_or(mesh.pp),
                           .stop_ids = {}};
  options.run_ahead = mesh.pp > 1;
  if (!config.sampling.ignore_eos && !config.workload.is_synthetic()) {
    options.stop_ids = model.eos_ids;
  }
  return options;
}

MemoryRecord planned_memory(const RunConfig& config,
                            const RunInputs& inputs,
                            const Mesh& mesh,
                            int rank) {
  const ModelConfig& model = inputs.model;
  const std::vector<Request> requests =
      requests_of(inputs.workload, mesh, mesh.coordinates(rank).dp);
  const SchedulerOptions scheduler = scheduler_options(config, model, mesh);
  const ShardPosition position = shard_position(config, mesh, rank);
  const DType compute = config.compute_dtype;
  const HeadShard heads = heads_of_rank(model, position);
  const std::vector<int64_t> blocks = blocks_for(requests, scheduler);
  MemoryRecord mine{.rank = rank};
  mine.weights_bytes =
      planned_weights_bytes(*inputs.source, model, position, resident_weights(config), compute);
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
       .n_logits_rows = config.output.logits ? n_rows : static_cast<int64_t>(requests.size()),
       .d_model = model.d_model,
       .d_ff_local = (model.d_ff + position.tp - 1) / position.tp,
       .heads_local = (heads.heads.size() + heads.kv_heads.size()) * model.head_dim,
       .vocab_size = model.vocab_size,
       .element_bytes = dtype_bytes(compute, 1)});
  return mine;
}

}  // namespace testbed
