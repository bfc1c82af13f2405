// Whether a split is legal for a model, and why not: the one place that decides. A refusal lists
// the legal values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "kernels/base/index_range.hpp"
#include "parallel/mesh.hpp"
#include "runtime/config/model_config.hpp"
#include "runtime/config/run_config.hpp"

namespace testbed {

// The ranks' mesh: dp is what tp*pp*cp leave over when it was not given. Throws ConfigError with
// the arithmetic when the product is not the number of ranks (D17).
Mesh resolve_mesh(const ParallelConfig& parallel, int world_size);

// The ranks of a simulated run: one process stands for all of them, so dp is 1 unless given.
Mesh simulated_mesh(const ParallelConfig& parallel);

// nullopt if the cluster has that many devices.
std::optional<std::string> why_too_many_devices(const Mesh& mesh, const ClusterSpec& cluster);

// nullopt if tensor parallelism of this degree is legal: heads divide, every layer's KV heads
// divide or are replicated (D1, D3), and every rank gets a share of each MLP, and with ep = 1 of
// each expert. MLA's latent is on all ranks. weight_block: elements of a quantisation block along a
// matrix's columns, 1 if none (D4): widths and a rank's heads are cut on block boundaries.
std::optional<std::string> why_illegal_tp(const ModelConfig& config,
                                          int tp,
                                          int64_t weight_block,
                                          int ep = 1);

// The same for the whole split; the message of a refusal lists the legal values of the degree at
// fault.
std::optional<std::string> why_illegal(const ModelConfig& config,
                                       const Mesh& mesh,
                                       const ParallelConfig& parallel,
                                       int64_t weight_block);

// Whether experts are reached by all-to-all; else tokens stay where they are.
bool exchanges_tokens(const ParallelConfig& parallel, const Mesh& mesh);

// All legal tp degrees of a model, ascending.
std::vector<int> legal_tp(const ModelConfig& config, int64_t weight_block, int ep = 1);

// All legal ep degrees of a model on tp*cp*dp ranks of a stage, ascending.
std::vector<int> legal_ep(const ModelConfig& config, int stage_size);

// Layers of each of the pipeline's chunks, by their parameters; layers that read the keys and
// values of another are in its chunk. Chunks: pp x virtual stages, which why_illegal() has passed.
std::vector<IndexRange> layers_of_chunks(const ModelConfig& config, int n_chunks);

}  // namespace testbed
