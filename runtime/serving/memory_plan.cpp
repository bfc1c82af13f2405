#include "runtime/serving/memory_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

// The first number in a file; nullopt if there is none ("max").
std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

int64_t mem_available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<int64_t>::max();
}

int64_t total_bytes(const MemoryRecord& m) {
  return m.weights_bytes + m.kv_pool_bytes + m.workspace_bytes;
}

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

}  // namespace

int64_t host_memory_bytes() {
  int64_t available = mem_available_bytes();
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, std::max<int64_t>(0, *limit - *used));
  return available;
}

namespace {

// Elements that a row of a layer's attention takes, the query, keys, values and output of this
// rank's heads.
int64_t attention_elements(const ModelConfig& model,
                           const ShardPosition& position,
                           const LayerShape& layer) {
  const int64_t n_heads = (model.n_heads + position.tp - 1) / position.tp;
  int64_t elements = n_heads * (layer.head_dim + layer.v_dim);
  if (!model.mla) {
    const int64_t n_kv_heads = std::max<int64_t>(1, layer.n_kv_heads / position.tp);
    return elements + n_kv_heads * (layer.head_dim + layer.v_dim);
  }
  // The absorbed query and output, beside the latent.
  elements += n_heads * (2 * model.mla->kv_lora_rank + 2 * model.mla->cached_dim());
  return elements + 3 * model.mla->cached_dim() + model.mla->q_lora_rank;
}

// The MLPs: gate | up and their product; of experts for each of a row's choices, with the rows that
// travel.
int64_t mlp_elements(const ModelConfig& model,
                     const ShardPosition& position,
                     const LayerShape& layer) {
  int64_t elements = 3 * ((layer.d_ff + position.tp - 1) / position.tp);
  if (!layer.has_experts) return elements;
  const MoeConfig& moe = *model.moe;
  const int64_t d_ff = position.ep > 1 ? moe.d_ff : (moe.d_ff + position.tp - 1) / position.tp;
  elements += 3 * ((moe.shared_d_ff + position.tp - 1) / position.tp);
  elements += moe.routing.top_k * (2 * model.d_model + 3 * d_ff);
  if (position.experts_all_to_all) elements += 4 * moe.routing.top_k * model.d_model;
  return elements + 4 * model.d_model;
}

// F32 partial results, and blocks on their way: two received, one gathered.
int64_t context_parallel_bytes(const ModelConfig& model,
                               const ShardPosition& position,
                               const LayerShape& layer,
                               const CachedShape& cached,
                               const WorkspaceShape& shape,
                               DType compute) {
  if (position.cp == 1) return 0;
  const int64_t n_heads = (model.n_heads + position.tp - 1) / position.tp;
  const int64_t v_dim = model.mla ? model.mla->kv_lora_rank : layer.v_dim;
  const int64_t partials = int64_t{4} * (2 + position.cp) * shape.n_rows * n_heads * (v_dim + 1);
  const int64_t n_tokens = shape.context_tokens / position.cp + 2 * shape.block_size;
  return partials + 3 * dtype_bytes(compute, n_tokens * cached.elements());
}

// Keys and values of all heads, expanded from the latents that a prompt's rows see.
int64_t expansion_bytes(const ModelConfig& model,
                        const ShardPosition& position,
                        const WorkspaceShape& shape,
                        DType compute) {
  if (!model.mla) return 0;
  const MlaConfig& mla = *model.mla;
  const int64_t n_heads = (model.n_heads + position.tp - 1) / position.tp;
  const int64_t per_token = n_heads * (3 * mla.qk_dim() + 3 * mla.v_dim) + 2 * mla.cached_dim();
  const int64_t n_tokens = shape.context_tokens / position.cp + 2 * shape.block_size;
  return dtype_bytes(compute, n_tokens * per_token);
}

}  // namespace

int64_t planned_workspace(const ModelConfig& model,
                          const ShardPosition& position,
                          const WorkspaceShape& shape,
                          DType compute) {
  int64_t largest = 0;
  for (const int64_t index : layers_of_rank(model, position)) {
    const LayerShape layer = model.layer(index);
    const CachedShape cached = cached_on_rank(model, index, position.tp, position.tp_rank);
    // residual, normed, two partial sums.
    const int64_t per_row = 4 * model.d_model + attention_elements(model, position, layer) +
                            mlp_elements(model, position, layer);
    largest = std::max(largest,
                       dtype_bytes(compute, shape.n_rows * per_row) +
                           context_parallel_bytes(model, position, layer, cached, shape, compute) +
                           expansion_bytes(model, position, shape, compute));
  }
  const int64_t per_logits_row =
      dtype_bytes(compute, model.d_model) + dtype_bytes(DType::F32, 3 * model.vocab_size);
  return largest + shape.n_logits_rows * per_logits_row;
}

void MemoryUse::add(const MemoryRecord& plan) {
  capacity_bytes =
      n_ranks == 0 ? plan.capacity_bytes : std::min(capacity_bytes, plan.capacity_bytes);
  if (n_ranks == 0 || total_bytes(plan) > total_bytes(largest)) largest = plan;
  needed_bytes += total_bytes(plan);
  ++n_ranks;
}

std::optional<std::string> MemoryUse::why_too_much() const {
  if (needed_bytes <= capacity_bytes) return std::nullopt;
  return fmt::format(
      "does not fit: {} rank(s) of {} need {:.1f} GiB, {:.1f} GiB are free; the largest is rank "
      "{}: weights {:.1f}, KV cache {:.1f}, workspace {:.1f} GiB",
      n_ranks,
      place,
      gib(needed_bytes),
      gib(capacity_bytes),
      largest.rank,
      gib(largest.weights_bytes),
      gib(largest.kv_pool_bytes),
      gib(largest.workspace_bytes));
}

std::optional<std::string> why_places_lack_memory(ControlChannel& control,
                                                  const std::string& place,
                                                  const std::vector<MemoryRecord>& plans) {
  ByteWriter out;
  out.put(place);
  out.put(plans);
  std::map<std::string, MemoryUse> places;
  for (const Bytes& bytes : control.all_gather(out.take())) {
    ByteReader in(bytes);
    std::string name;
    std::vector<MemoryRecord> of_process;
    in.get(name);
    in.get(of_process);
    MemoryUse& use = places[name];
    use.place = name;
    for (const MemoryRecord& plan : of_process) use.add(plan);
  }
  for (const auto& [name, use] : places) {
    if (auto reason = use.why_too_much()) return reason;
  }
  return std::nullopt;
}

}  // namespace testbed
