#include "runtime/serving/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"
#include "parallel/comm/solo.hpp"
#include "runtime/serving/memory_plan.hpp"

namespace testbed {
namespace {

using Rows = std::vector<CapturedRow>;

// Two ragged prompts, taken in steps of at most step_tokens rows, so that later steps read the
// cache as decode does. All rows' logits are compared; none depends on what was sampled.
constexpr int64_t step_tokens = 8;
std::vector<Request> check_requests(const ModelConfig& config) {
  std::vector<Request> requests;
  for (const int64_t n_tokens : {11, 6}) {
    Request request{
        .index = static_cast<int32_t>(requests.size()), .prompt_ids = {}, .max_new_tokens = 1};
    for (int64_t i = 0; i < n_tokens; ++i) {
      const uint64_t draw = mix64(static_cast<uint64_t>(int64_t{request.index} * 1000 + i));
      request.prompt_ids.push_back(
          static_cast<int32_t>(draw % static_cast<uint64_t>(config.vocab_size)));
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

// What both sides compute on. Rounding to bf16 changes which experts are chosen, by any order of
// sums: models with experts are compared in f32.
std::unique_ptr<Device> exact_device(const CheckInput& input) {
  const bool rounds = input.device.compute_dtype() != DType::F32;
  return rounds && input.config.moe ? input.make_device(DType::F32) : nullptr;
}

struct CheckRun {
  Rows rows;  // on tp rank 0 of the last stage
  ResidualHash residual_hash;
};

CheckRun run_check(Device& device,
                   const Groups& groups,
                   const Replica& replica,
                   const Model& model,
                   int n_microbatches,
                   CpPlacement cp_placement) {
  const std::vector<Request> requests = check_requests(model.config);
  GenerationOptions options;
  options.scheduler = {.kv_groups = kv_groups(model.config),
                       // So small that every cp rank has some of them.
                       .block_size = model.position.cp > 1 ? 1 : 16,
                       .max_step_tokens = step_tokens,
                       .n_microbatches = n_microbatches,
                       .stop_ids = {},
                       .all_prompt_logits = true,
                       .cp = model.position.cp,
                       .cp_placement = cp_placement};
  options.scheduler.pool_blocks = blocks_for(requests, options.scheduler);
  const KvCache kv(device,
                   options.scheduler.kv_groups,
                   options.scheduler.pool_blocks,
                   kv_layouts(model.config,
                              layers_of_rank(model.config, model.position),
                              model.position.tp,
                              model.position.tp_rank),
                   options.scheduler.block_size);
  Executor executor(
      device,
      groups,
      model,
      kv,
      options.scheduler.kv_groups,
      {.sampling = {}, .capture_logits = true, .hash_residuals = true, .check_finite = true});
  generate(replica, executor, requests, options);
  return {executor.take_captured(), executor.residual_hash()};
}

void sort_rows(Rows& rows) {
  std::sort(rows.begin(), rows.end(), [](const CapturedRow& a, const CapturedRow& b) {
    return std::pair(a.row.request, a.row.position) < std::pair(b.row.request, b.row.position);
  });
}

double max_abs(const Rows& rows) {
  double largest = 0.0;
  for (const CapturedRow& row : rows) {
    for (const float x : row.logits) largest = std::max(largest, std::abs(double{x}));
  }
  return largest;
}

struct Difference {
  int64_t n_compared = 0;
  double max_abs = 0.0;
  std::optional<std::string> first;  // beyond the tolerance
};

Difference compare(const Rows& expected, const Rows& got, double tolerance) {
  CHECK(expected.size() == got.size());
  Difference difference;
  for (size_t r = 0; r < expected.size(); ++r) {
    CHECK(expected[r].logits.size() == got[r].logits.size());
    for (size_t i = 0; i < expected[r].logits.size(); ++i) {
      const double delta = std::abs(double{expected[r].logits[i]} - double{got[r].logits[i]});
      ++difference.n_compared;
      difference.max_abs = std::max(difference.max_abs, delta);
      if (!(delta <= tolerance) && !difference.first) {
        difference.first =
            fmt::format("request {} position {} id {}: one rank {:.6g}, split {:.6g}",
                        expected[r].row.request,
                        expected[r].row.position,
                        i,
                        expected[r].logits[i],
                        got[r].logits[i]);
      }
    }
  }
  return difference;
}

struct Reference {
  Rows rows;
  double tolerance = 0.0;
};

// On world rank 0 alone: the whole (truncated) model.
Reference one_rank(const CheckInput& input, Device& device, const ModelConfig& config) {
  const auto silent = [](int64_t, int64_t) {};
  const Model model = load_model(device, input.source, config, {}, input.wanted, silent);
  SoloCommunicator solo(input.replica.rank);
  const Groups groups{solo, solo, solo, solo, solo, solo, solo};
  const Replica alone{input.replica.control, input.replica.rank, {input.replica.rank}, 0};
  Reference reference{run_check(device, groups, alone, model, 1, input.cp_placement).rows};
  sort_rows(reference.rows);
  if (device.compute_dtype() == DType::F32) {
    const double layers = std::max(1.0, static_cast<double>(config.n_layers) / 5.0);
    reference.tolerance = 2e-4 * std::max(1.0, max_abs(reference.rows) / 13.0) * std::sqrt(layers);
  } else {
    const std::unique_ptr<Device> f32 = input.make_device(DType::F32);
    Rows exact = run_check(*f32, groups, alone, model, 1, input.cp_placement).rows;
    sort_rows(exact);
    reference.tolerance = 4.0 * compare(exact, reference.rows, INFINITY).max_abs;
  }
  return reference;
}

// One rank holds more of the model here than in the run.
std::optional<std::string> why_too_large(const CheckInput& input, const ModelConfig& config) {
  const int64_t needed =
      planned_weights_bytes(input.source, config, {}, input.wanted, input.device.compute_dtype());
  const int64_t available = host_memory_bytes();
  if (needed <= available) return std::nullopt;
  return fmt::format(
      "the check needs {:.1f} GB of weights on rank 0 and {:.1f} GB are free: --check {}",
      static_cast<double>(needed) * 1e-9,
      static_cast<double>(available) * 1e-9,
      input.mode == CheckMode::full ? "layers" : "off");
}

// The run's split on fewer layers: as many stages as there are layers for.
ShardPosition check_position(ShardPosition position, int64_t n_layers) {
  if (position.n_chunks() > n_layers) position.n_virtual_stages = 1;
  position.n_stages = static_cast<int>(std::min<int64_t>(position.n_stages, n_layers));
  return position;
}

Replica check_replica(const CheckInput& input, int n_stages) {
  Replica replica = input.replica;
  const auto n_ranks = static_cast<size_t>(input.position.tp) *
                       static_cast<size_t>(input.position.cp) * static_cast<size_t>(n_stages);
  replica.ranks.resize(std::min(replica.ranks.size(), n_ranks));  // stages are in rank order
  return replica;
}

Bytes pack(const Rows& rows) {
  ByteWriter out;
  out.put(static_cast<uint64_t>(rows.size()));
  for (const CapturedRow& row : rows) {
    out.put(row.row);
    out.put(row.logits);
  }
  return out.take();
}

Rows unpack(const Bytes& bytes) {
  ByteReader in(bytes);
  uint64_t n = 0;
  in.get(n);
  Rows rows(static_cast<size_t>(n));
  for (CapturedRow& row : rows) {
    in.get(row.row);
    in.get(row.logits);
  }
  sort_rows(rows);
  return rows;
}

// Equal stages of all tp ranks and replicas saw the same rows, so their residuals are equal in
// every bit.
struct RankHash {
  int place;  // stage and cp rank
  int taking_part;
  uint64_t hash;
};
// nullopt where no two ranks hold the same.
std::optional<bool> replicas_equal(const std::vector<Bytes>& hashes) {
  std::vector<std::optional<uint64_t>> of_place;
  std::optional<bool> equal;
  for (const Bytes& bytes : hashes) {
    RankHash mine{};
    ByteReader(bytes).get(mine);
    if (mine.taking_part == 0) continue;
    of_place.resize(std::max(of_place.size(), static_cast<size_t>(mine.place) + 1));
    std::optional<uint64_t>& expected = of_place[static_cast<size_t>(mine.place)];
    if (expected) equal = equal.value_or(true) && *expected == mine.hash;
    expected = mine.hash;
  }
  return equal;
}

}  // namespace

ChecksRecord check_against_one_rank(const CheckInput& input) {
  ChecksRecord record;
  if (input.mode == CheckMode::off) return record;
  record.against_one_rank.mode = input.mode == CheckMode::full ? "full" : "layers";
  constexpr int64_t layers_checked = 2;
  const ModelConfig config =
      input.mode == CheckMode::full
          ? input.config
          : truncated_to(input.config, std::min(layers_checked, input.config.n_layers));
  ControlChannel& control = input.replica.control;

  Reference reference;
  control.agree_on_mistake(control.rank() == 0 ? why_too_large(input, config) : std::nullopt);
  const std::unique_ptr<Device> exact = exact_device(input);
  Device& device = exact ? *exact : input.device;
  if (control.rank() == 0) reference = one_rank(input, device, config);
  control.barrier();

  const ShardPosition position = check_position(input.position, config.n_layers);
  const bool takes_part = input.position.stage < position.n_stages;
  CheckRun split;
  if (takes_part) {
    const auto silent = [](int64_t, int64_t) {};
    const Model model = load_model(device, input.source, config, position, input.wanted, silent);
    split = run_check(device,
                      input.groups,
                      check_replica(input, position.n_stages),
                      model,
                      input.n_microbatches,
                      input.cp_placement);
  }
  ByteWriter hash;
  hash.put(RankHash{input.position.stage * input.position.cp + input.position.cp_rank,
                    takes_part ? 1 : 0,
                    split.residual_hash.of_tp});
  record.replicas_bitwise_equal = replicas_equal(control.all_gather(hash.take()));
  record.against_one_rank.layers = static_cast<int>(config.n_layers);
  record.against_one_rank.tp = position.tp;
  record.against_one_rank.pp = position.n_stages;
  record.against_one_rank.virtual_stages = position.n_virtual_stages;
  record.against_one_rank.cp = position.cp;
  record.against_one_rank.ep = position.ep;
  record.against_one_rank.compute_dtype = std::string(dtype_name(device.compute_dtype()));

  std::optional<std::string> failure;
  const std::vector<Bytes> all_rows =
      control.gather(input.replica.dp == 0 && !split.rows.empty() ? pack(split.rows) : Bytes{}, 0);
  for (const Bytes& bytes : all_rows) {
    if (bytes.empty()) continue;
    const Difference difference = compare(reference.rows, unpack(bytes), reference.tolerance);
    record.against_one_rank.compared = difference.n_compared;
    record.against_one_rank.max_abs_diff = difference.max_abs;
    record.against_one_rank.tolerance = reference.tolerance;
    record.against_one_rank.first_difference = difference.first;
    if (difference.first) {
      failure = fmt::format(
          "{}: the sharded logits differ from one rank's by {:.3g} (tolerance {:.3g}); first at {}",
          failed_check,
          difference.max_abs,
          reference.tolerance,
          *difference.first);
    }
  }
  if (!failure && record.replicas_bitwise_equal == false) {
    failure = fmt::format("{}: ranks that must hold the same values differ", failed_check);
  }
  if (!failure && control.rank() == 0 && record.against_one_rank.compared == 0) {
    failure = fmt::format("{}: no logits came back to be compared", failed_check);
  }
  control.agree(failure);
  return record;
}

}  // namespace testbed
