#include "runtime/config/split.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/errors.hpp"

namespace testbed {

Mesh resolve_mesh(const ParallelConfig& parallel, int world_size) {
  const int without_dp = parallel.tp * parallel.pp * parallel.cp;
  const int dp = parallel.dp.value_or(without_dp <= world_size ? world_size / without_dp : 1);
  const Mesh mesh{.tp = parallel.tp, .cp = parallel.cp, .dp = dp, .pp = parallel.pp};
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
  return {.tp = parallel.tp, .cp = parallel.cp, .dp = parallel.dp.value_or(1), .pp = parallel.pp};
}

std::optional<std::string> why_too_many_devices(const Mesh& mesh, const ClusterSpec& cluster) {
  const int64_t wanted = int64_t{mesh.tp} * mesh.cp * mesh.dp * mesh.pp;
  if (wanted <= cluster.n_devices()) return std::nullopt;
  return fmt::format("tp {} x pp {} x dp {} = {} devices, and {} has {}",
                     mesh.tp,
                     mesh.pp,
                     mesh.dp,
                     wanted,
                     cluster.name,
                     cluster.n_devices());
}

std::optional<std::string> why_illegal_tp(const ModelConfig& config, int tp, int64_t weight_block) {
  if (config.n_heads % tp != 0) {
    return fmt::format("{} heads do not divide by {}", config.n_heads, tp);
  }
  if (config.n_kv_heads % tp != 0 && tp % config.n_kv_heads != 0) {
    return fmt::format(
        "{} KV heads neither divide by {} nor are a divisor of it", config.n_kv_heads, tp);
  }
  if (config.d_ff / weight_block < tp) {
    return fmt::format("an FFN width of {} has no share for each of {} ranks (blocks of {})",
                       config.d_ff,
                       tp,
                       weight_block);
  }
  const int64_t head_columns = config.n_heads / tp * config.head_dim;
  if (tp > 1 && head_columns % weight_block != 0) {
    return fmt::format(
        "{} heads of {} per rank do not fill whole quantisation blocks of {} of the output "
        "projection",
        config.n_heads / tp,
        config.head_dim,
        weight_block);
  }
  return std::nullopt;
}

std::vector<int> legal_tp(const ModelConfig& config, int64_t weight_block) {
  std::vector<int> legal;
  for (int tp = 1; tp <= config.n_heads; ++tp) {
    if (!why_illegal_tp(config, tp, weight_block)) legal.push_back(tp);
  }
  return legal;
}

std::optional<std::string> why_illegal(const ModelConfig& config,
                                       const Mesh& mesh,
                                       const ParallelConfig& parallel,
                                       int64_t weight_block) {
  const int virtual_stages = parallel.virtual_stages;
  if (const std::optional<std::string> reason = why_illegal_tp(config, mesh.tp, weight_block)) {
    return fmt::format("--tp {}: {}; legal for {}: {}",
                       mesh.tp,
                       *reason,
                       config.name,
                       fmt::join(legal_tp(config, weight_block), ", "));
  }
  if (int64_t{mesh.pp} * virtual_stages > config.n_layers) {
    return fmt::format(
        "--pp {} x --virtual-stages {}: more chunks than the {} layers of {}; legal: pp x virtual "
        "stages up to {}",
        mesh.pp,
        virtual_stages,
        config.n_layers,
        config.name,
        config.n_layers);
  }
  if (virtual_stages > 1 && mesh.pp == 1) {
    return fmt::format("--virtual-stages {}: needs --pp 2 or more", virtual_stages);
  }
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

}  // namespace testbed
