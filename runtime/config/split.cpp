#include "runtime/config/split.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/errors.hpp"
#include "parallel/shard.hpp"

namespace testbed {

Mesh resolve_mesh(const ParallelConfig& parallel, int world_size) {
  const int without_dp = parallel.tp * parallel.pp * parallel.cp;
  const int dp = parallel.dp.value_or(without_dp <= world_size ? world_size / without_dp : 1);
  const Mesh mesh{
      .tp = parallel.tp, .cp = parallel.cp, .dp = dp, .pp = parallel.pp, .ep = parallel.ep};
  if (mesh.world_size() != world_size) {
    throw ConfigError(
        fmt::format("{} rank{} \u2260 tp {} \u00b7 pp {} \u00b7 cp {} \u00b7 dp {} = {}: start "
                    "that many ranks, or change the degrees",
                    world_size,
                    world_size == 1 ? "" : "s",
                    mesh.tp,
                    mesh.pp,
                    mesh.cp,
                    mesh.dp,
                    mesh.world_size()));
  }
  return mesh;
}

Mesh simulated_mesh(const ParallelConfig& parallel) {
  return {.tp = parallel.tp,
          .cp = parallel.cp,
          .dp = parallel.dp.value_or(1),
          .pp = parallel.pp,
          .ep = parallel.ep};
}

std::optional<std::string> why_too_many_devices(const Mesh& mesh, const ClusterSpec& cluster) {
  const int64_t wanted = int64_t{mesh.tp} * mesh.cp * mesh.dp * mesh.pp;
  if (wanted <= cluster.n_devices()) return std::nullopt;
  return fmt::format("tp {} x pp {} x cp {} x dp {} = {} devices, and {} has {}",
                     mesh.tp,
                     mesh.pp,
                     mesh.cp,
                     mesh.dp,
                     wanted,
                     cluster.name,
                     cluster.n_devices());
}

namespace {

// The different shapes among the layers: what is legal for them is legal for all.
std::vector<LayerShape> distinct_shapes(const ModelConfig& config) {
  std::vector<LayerShape> shapes;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    LayerShape shape = config.layer(i);
    shape.kv_layer = 0;
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  }
  return shapes;
}

std::optional<std::string> why_heads_do_not_divide(const ModelConfig& config,
                                                   const LayerShape& layer,
                                                   int tp,
                                                   int64_t weight_block) {
  if (config.n_heads % tp != 0)
    return fmt::format("{} heads do not divide by {}", config.n_heads, tp);
  if (layer.n_kv_heads % tp != 0 && tp % layer.n_kv_heads != 0)
    return fmt::format(
        "{} KV heads neither divide by {} nor are a divisor of it", layer.n_kv_heads, tp);
  const int64_t n_heads_local = config.n_heads / tp;
  if (tp > 1 && n_heads_local * layer.v_dim % weight_block != 0)
    return fmt::format(
        "{} heads of {} per rank do not fill whole quantisation blocks of {} of the output "
        "projection",
        n_heads_local,
        layer.v_dim,
        weight_block);
  return std::nullopt;
}

std::optional<std::string> why_no_share(const char* what, int64_t width, int tp, int64_t block) {
  if (width == 0 || (width + block - 1) / block >= tp) return std::nullopt;
  return fmt::format(
      "{} of {} has no share for each of {} ranks (blocks of {})", what, width, tp, block);
}

std::optional<std::string> why_illegal_tp(const ModelConfig& config,
                                          const std::vector<LayerShape>& shapes,
                                          int tp,
                                          int64_t weight_block,
                                          int ep) {
  for (const LayerShape& layer : shapes) {
    if (auto reason = why_heads_do_not_divide(config, layer, tp, weight_block)) return reason;
    if (auto reason = why_no_share("an FFN width", layer.d_ff, tp, weight_block)) return reason;
    if (!layer.has_experts) continue;
    const MoeConfig& moe = *config.moe;
    if (auto reason = why_no_share("a shared experts' width", moe.shared_d_ff, tp, weight_block))
      return reason;
    if (ep > 1) continue;
    if (auto reason = why_no_share("an expert's width", moe.d_ff, tp, weight_block)) return reason;
  }
  return std::nullopt;
}

// Layers that may begin a chunk: none behind them reads the cache of one before them.
std::vector<int64_t> unit_starts(const ModelConfig& config) {
  std::vector<int64_t> starts;
  int64_t lowest_read = config.n_layers;
  for (int64_t i = config.n_layers - 1; i >= 0; --i) {
    lowest_read = std::min(lowest_read, config.layer(i).kv_layer);
    if (lowest_read == i) starts.push_back(i);
  }
  std::reverse(starts.begin(), starts.end());
  return starts;
}

std::optional<std::string> why_illegal_pipeline(const ModelConfig& config,
                                                const Mesh& mesh,
                                                const ParallelConfig& parallel) {
  const int virtual_stages = parallel.virtual_stages;
  const auto n_units = static_cast<int64_t>(unit_starts(config).size());
  if (int64_t{mesh.pp} * virtual_stages > n_units) {
    return fmt::format(
        "--pp {} x --virtual-stages {}: more chunks than the {} layers of {}{}; legal: pp x "
        "virtual stages up to {}",
        mesh.pp,
        virtual_stages,
        config.n_layers,
        config.name,
        n_units < config.n_layers ? ", of which those that share keys and values stay together"
                                  : "",
        n_units);
  }
  if (virtual_stages > 1 && mesh.pp == 1)
    return fmt::format("--virtual-stages {}: needs --pp 2 or more", virtual_stages);
  const int microbatches = parallel.microbatches.value_or(mesh.pp);
  if (virtual_stages > 1 && microbatches > mesh.pp && microbatches % mesh.pp != 0) {
    return fmt::format(
        "--microbatches {}: interleaved stages take up to {} or a multiple of {}, the pipeline "
        "stages",
        microbatches,
        mesh.pp,
        mesh.pp);
  }
  return std::nullopt;
}

std::optional<std::string> why_illegal_ep(const ModelConfig& config,
                                          const Mesh& mesh,
                                          ExpertExchange exchange) {
  if (!config.moe && exchange != ExpertExchange::automatic)
    return fmt::format("--expert-exchange: {} has no experts", config.name);
  const auto refusal = [&](const std::string& reason) {
    return fmt::format("--ep {}: {}; legal for {}: {}",
                       mesh.ep,
                       reason,
                       config.name,
                       fmt::join(legal_ep(config, mesh.stage_size()), ", "));
  };
  if (mesh.ep == 1) return std::nullopt;
  if (!config.moe) return refusal("the model has no experts");
  if (mesh.ep > config.moe->n_experts)
    return refusal(fmt::format("there are only {} experts", config.moe->n_experts));
  if (mesh.stage_size() % mesh.ep != 0)
    return refusal(fmt::format("is no divisor of tp {} x cp {} x dp {} = {} ranks of a stage",
                               mesh.tp,
                               mesh.cp,
                               mesh.dp,
                               mesh.stage_size()));
  if (exchange == ExpertExchange::all_reduce && mesh.ep != mesh.tp)
    return fmt::format(
        "--expert-exchange all-reduce: the ranks of an expert group hold the same tokens only "
        "where --ep {} is --tp {}; legal: auto, all-to-all",
        mesh.ep,
        mesh.tp);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_illegal_tp(const ModelConfig& config,
                                          int tp,
                                          int64_t weight_block,
                                          int ep) {
  return why_illegal_tp(config, distinct_shapes(config), tp, weight_block, ep);
}

bool exchanges_tokens(const ParallelConfig& parallel, const Mesh& mesh) {
  if (mesh.ep == 1) return false;
  if (parallel.expert_exchange != ExpertExchange::automatic) {
    return parallel.expert_exchange == ExpertExchange::all_to_all;
  }
  return mesh.ep != mesh.tp;
}

std::vector<int> legal_tp(const ModelConfig& config, int64_t weight_block, int ep) {
  const std::vector<LayerShape> shapes = distinct_shapes(config);
  std::vector<int> legal;
  for (int tp = 1; tp <= config.n_heads; ++tp)
    if (!why_illegal_tp(config, shapes, tp, weight_block, ep)) legal.push_back(tp);
  return legal;
}

std::vector<int> legal_ep(const ModelConfig& config, int stage_size) {
  const int64_t highest = config.moe ? std::min<int64_t>(config.moe->n_experts, stage_size) : 1;
  std::vector<int> legal;
  for (int ep = 1; ep <= highest; ++ep)
    if (stage_size % ep == 0) legal.push_back(ep);
  return legal;
}

std::optional<std::string> why_illegal(const ModelConfig& config,
                                       const Mesh& mesh,
                                       const ParallelConfig& parallel,
                                       int64_t weight_block) {
  if (const auto reason = why_illegal_tp(config, mesh.tp, weight_block, mesh.ep)) {
    return fmt::format("--tp {}: {}; legal for {}: {}",
                       mesh.tp,
                       *reason,
                       config.name,
                       fmt::join(legal_tp(config, weight_block, mesh.ep), ", "));
  }
  if (auto reason = why_illegal_ep(config, mesh, parallel.expert_exchange)) return reason;
  return why_illegal_pipeline(config, mesh, parallel);
}

std::vector<IndexRange> layers_of_chunks(const ModelConfig& config, int n_chunks) {
  std::vector<int64_t> costs(static_cast<size_t>(config.n_layers));
  for (size_t i = 0; i < costs.size(); ++i)
    costs[i] = config.layer_parameters(static_cast<int64_t>(i));
  return split_layers(costs, unit_starts(config), n_chunks, config.vocab_size * config.d_model);
}

}  // namespace testbed
