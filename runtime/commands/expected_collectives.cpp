#include "runtime/commands/expected_collectives.hpp"

#include <algorithm>
#include <set>

#include "parallel/residual_stream.hpp"
#include "runtime/config/split.hpp"
#include "runtime/serving/sampler.hpp"

namespace testbed {
namespace {

// The sizes of the microbatches of all plans, which decide those of their collectives.
struct StepSizes {
  std::vector<std::set<int64_t>> rows;  // [cp] of a rank
  std::set<int64_t> sampled;            // of a microbatch's rows, those with logits
  std::set<int64_t> sampled_in_ring;    // the same, where each cp rank has some of the rows
  std::set<int64_t> merged;             // rows whose attention is merged over cp
};

void add_microbatch(const MicrobatchPlan& microbatch, int64_t block_size, StepSizes& sizes) {
  const auto n_sampled = static_cast<int64_t>(microbatch.logits_rows.size());
  const bool ring = std::any_of(microbatch.sequences.begin(),
                                microbatch.sequences.end(),
                                [](const PlanSequence& sequence) { return sequence.split; });
  for (size_t cp_rank = 0; cp_rank < sizes.rows.size(); ++cp_rank) {
    int64_t n_rows = 0;
    for (const PlanSequence& sequence : microbatch.sequences) {
      for (const PositionRun& run :
           rows_on_cp_rank(sequence, block_size, static_cast<int>(cp_rank))) {
        n_rows += run.n;
      }
    }
    sizes.rows[cp_rank].insert(n_rows);
  }
  if (n_sampled > 0) sizes.sampled.insert(n_sampled);
  if (n_sampled > 0 && ring) sizes.sampled_in_ring.insert(n_sampled);
  if (!ring) sizes.merged.insert(microbatch.n_rows());
}

// The plans of one replica, as its scheduler will make them.
void add_plans(std::vector<Request> requests, const SchedulerOptions& options, StepSizes& sizes) {
  Scheduler scheduler(std::move(requests), options);
  while (const std::optional<StepPlan> plan = scheduler.next()) {
    size_t n_sampled = 0;
    for (const MicrobatchPlan& microbatch : plan->microbatches) {
      add_microbatch(microbatch, options.block_size, sizes);
      for (const LogitsRow& row : microbatch.logits_rows) n_sampled += row.sample ? 1 : 0;
    }
    scheduler.update(plan->step, std::vector<int32_t>(n_sampled, 0));
  }
}

StepSizes step_sizes(const RunConfig& config, const RunInputs& inputs, const Mesh& mesh) {
  StepSizes sizes;
  sizes.rows.resize(static_cast<size_t>(mesh.cp));
  if (mesh.ep_spans_replicas()) {  // one may have nothing to do while another steps
    for (std::set<int64_t>& rows : sizes.rows) rows.insert(0);
  }
  const SchedulerOptions options = scheduler_options(config, inputs.model, mesh);
  std::set<std::pair<size_t, size_t>> seen;  // requests and their tokens: replicas are mostly alike
  for (int dp = 0; dp < mesh.dp; ++dp) {
    std::vector<Request> requests = requests_of(inputs.workload, mesh, dp);
    size_t n_tokens = 0;
    for (const Request& request : requests) n_tokens += request.prompt_ids.size();
    if (!seen.insert({requests.size(), n_tokens}).second) continue;
    add_plans(std::move(requests), options, sizes);
  }
  return sizes;
}

// F32 elements of a row's partial attention, by layer: out [n_heads_local, dim] and its weight.
// MLA decodes on latents.
std::set<int64_t> partial_elements(const ModelConfig& model, int tp) {
  std::set<int64_t> elements;
  for (int64_t i = 0; i < model.n_layers; ++i) {
    const int64_t dim = model.mla ? model.mla->kv_lora_rank : model.layer(i).v_dim;
    elements.insert(model.n_heads / tp * (dim + 1));
  }
  return elements;
}

class Expected {
 public:
  Expected(const RunConfig& config, const ModelConfig& model, const Mesh& mesh, StepSizes sizes)
      : config_(config), model_(model), mesh_(mesh), sizes_(std::move(sizes)) {}

  // Row-parallel sums and embeddings; with whole experts or sequence-parallel TP the slices of
  // rows that ranks bring together; the sampled rows' largest logits.
  void add_tp(const GroupPlacement& group, int cp_rank) {
    const TpComm comm = config_.parallel.tp_comm;
    for (const int64_t n : sizes_.rows[static_cast<size_t>(cp_rank)]) {
      const int64_t padded = row_bytes(RowSlices(n, mesh_.tp).padded_rows());
      if (comm == TpComm::all_reduce) add(CommOp::all_reduce, row_bytes(n), group);
      if (comm == TpComm::reduce_scatter) add(CommOp::reduce_scatter, padded, group);
      if (comm == TpComm::reduce_scatter || exchanges_tokens(config_.parallel, mesh_)) {
        add(CommOp::all_gather, padded, group);
      }
      if (const auto& input = model_.per_layer_input) {
        add(CommOp::all_reduce,
            dtype_bytes(config_.compute_dtype, n * model_.n_layers * input->dim),
            group);
      }
    }
    for (const int64_t n : sizes_.sampled) {
      add(CommOp::all_gather, n * mesh_.tp * sampled_row_bytes, group);
    }
  }

  // Decoding: the partial attention of every layer. A prompt: the rows whose logits are wanted.
  void add_cp(const GroupPlacement& group) {
    for (const int64_t elements : partial_elements(model_, mesh_.tp)) {
      for (const int64_t n : sizes_.merged) {
        add(CommOp::all_gather, dtype_bytes(DType::F32, mesh_.cp * n * elements), group);
      }
    }
    for (const int64_t n : sizes_.sampled_in_ring) {
      add(CommOp::all_reduce, row_bytes(n), group);
    }
  }

  // How many rows each rank sends to each. The exchanges themselves depend on the routing.
  void add_ep(const GroupPlacement& group) {
    add(CommOp::all_gather, dtype_bytes(DType::I32, int64_t{mesh_.ep} * mesh_.ep), group);
  }

  std::vector<CollectiveKey> keys() const { return {keys_.begin(), keys_.end()}; }

 private:
  int64_t row_bytes(int64_t n_rows) const {
    return dtype_bytes(config_.compute_dtype, n_rows * model_.d_model);
  }
  void add(CommOp op, int64_t n_bytes, const GroupPlacement& group) {
    keys_.insert(collective_key(op, n_bytes, group));
  }

  const RunConfig& config_;
  const ModelConfig& model_;
  const Mesh& mesh_;
  StepSizes sizes_;
  std::set<CollectiveKey> keys_;
};

}  // namespace

std::vector<CollectiveKey> expected_collectives(const RunConfig& config,
                                                const RunInputs& inputs,
                                                const Mesh& mesh,
                                                const ClusterSpec& cluster) {
  if (mesh.tp == 1 && mesh.cp == 1 && mesh.ep == 1) return {};
  Expected expected(config, inputs.model, mesh, step_sizes(config, inputs, mesh));
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const auto first_of = [&](Axis axis) { return mesh.group(rank, axis).front() == rank; };
    const auto group = [&](Axis axis) {
      return placement_of(mesh.group(rank, axis), cluster.node.n_devices);
    };
    if (mesh.tp > 1 && first_of(Axis::tp)) {
      expected.add_tp(group(Axis::tp), mesh.coordinates(rank).cp);
    }
    if (mesh.cp > 1 && first_of(Axis::cp)) expected.add_cp(group(Axis::cp));
    if (exchanges_tokens(config.parallel, mesh) && first_of(Axis::ep)) {
      expected.add_ep(group(Axis::ep));
    }
  }
  return expected.keys();
}

}  // namespace testbed
