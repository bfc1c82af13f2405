#include "runtime/commands/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/clock.hpp"

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

Model load(const RankContext& context) {
  Progress progress(context.rank == 0 && !context.config.output.quiet);
  std::optional<std::string> error;
  Model loaded;
  try {
    loaded = load_model(context.device,
                        *context.inputs.source,
                        context.inputs.model,
                        shard_position(context.config.parallel, context.mesh, context.rank),
                        resident_weights(context.config),
                        [&](int64_t done, int64_t total) { progress(done, total); });
  } catch (const std::exception& e) {
    error = e.what();
  }
  context.control.agree(error);
  return loaded;
}

}  // namespace

Replica replica_of(const RankContext& context) {
  Coordinates c = context.coordinates();
  Replica replica{
      .control = context.control, .rank = context.rank, .ranks = {}, .dp = c.dp, .in_step = {}};
  for (c.pp = 0; c.pp < context.mesh.pp; ++c.pp) {
    for (c.cp = 0; c.cp < context.mesh.cp; ++c.cp) {
      for (c.tp = 0; c.tp < context.mesh.tp; ++c.tp) replica.ranks.push_back(context.mesh.rank(c));
    }
  }
  if (context.mesh.ep_spans_replicas()) {
    for (int dp = 0; dp < context.mesh.dp; ++dp) {
      replica.in_step.push_back(context.mesh.rank({.dp = dp}));
    }
  }
  return replica;
}

Session::Session(const RankContext& context)
    : context_(context),
      requests_(requests_of(context.inputs.workload, context.mesh, context.coordinates().dp)),
      scheduler_(scheduler_options(context.config, context.inputs.model, context.mesh, requests_)),
      replica_(replica_of(context)),
      model_(load(context)),
      kv_(context.device,
          scheduler_.kv_groups,
          scheduler_.pool_blocks,
          kv_layouts(model_.config,
                     layers_of_rank(model_.config, model_.position),
                     model_.position.tp,
                     model_.position.tp_rank),
          scheduler_.block_size),
      executor_(context.device,
                context.groups,
                model_,
                kv_,
                scheduler_.kv_groups,
                {.sampling = context.config.sampling}) {
  if (context.config.workload.context > 0) kv_.fill_synthetic(context.device);
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

void Session::generate_watched(ExecutorOptions options,
                               const std::function<void(Executor&)>& take) {
  options.sampling = context_.config.sampling;
  Executor watched(context_.device, context_.groups, model_, kv_, scheduler_.kv_groups, options);
  context_.control.barrier();
  generate(replica_, watched, requests_, {.scheduler = scheduler_, .on_token = {}});
  take(watched);
}

ResidualHash Session::generate_fingerprint() {
  ResidualHash hash;
  generate_watched({.hash_residuals = true},
                   [&](Executor& executor) { hash = executor.residual_hash(); });
  return hash;
}

std::vector<ResidualMark> Session::generate_marks() {
  std::vector<ResidualMark> marks;
  generate_watched({.mark_residuals = true},
                   [&](Executor& executor) { marks = executor.take_residual_marks(); });
  return marks;
}

CapturedRun Session::generate_with_logits() {
  Executor capturing(
      context_.device,
      context_.groups,
      model_,
      kv_,
      scheduler_.kv_groups,
      {.sampling = context_.config.sampling, .capture_logits = true, .check_finite = true});
  SchedulerOptions all_rows = scheduler_;
  all_rows.all_prompt_logits = true;
  all_rows.run_ahead = false;  // no row beyond a stop
  generate(replica_, capturing, requests_, {.scheduler = all_rows, .on_token = {}});
  return {capturing.take_captured(), capturing.take_routes()};
}

std::vector<MemoryRecord> Session::memory(const GenerationResult& last) const {
  MemoryRecord mine = context_.planned;
  mine.weights_bytes = model_.weights_bytes;
  mine.kv_pool_bytes = kv_.pool_bytes();
  mine.kv_bytes_per_token = kv_.bytes_per_token();
  mine.workspace_bytes = executor_.workspace_bytes();
  std::vector<int64_t> token_bytes;  // [KV group]
  for (size_t g = 0; g < scheduler_.kv_groups.size(); ++g) {
    token_bytes.push_back(kv_.bytes_per_token(static_cast<int>(g)));
  }
  ByteWriter out;
  out.put(mine);
  out.put(token_bytes);
  out.put(last.peak_kv);  // only the scheduling rank of a replica knows it

  std::vector<MemoryRecord> all;
  std::map<int, std::vector<BlockPool::Usage>> used;  // [dp] [cp rank][KV group]
  for (const Bytes& bytes : context_.control.gather(out.take(), 0)) {
    const int rank = static_cast<int>(all.size());
    ByteReader in(bytes);
    MemoryRecord& record = all.emplace_back();
    std::vector<BlockPool::Usage> peak;
    in.get(record);
    in.get(token_bytes);
    in.get(peak);
    // A replica's scheduling rank is its lowest.
    const Coordinates c = context_.mesh.coordinates(rank);
    const std::vector<BlockPool::Usage>& usage =
        used.try_emplace(c.dp, std::move(peak)).first->second;
    for (size_t g = 0; g < token_bytes.size(); ++g) {
      const BlockPool::Usage& mine_used = usage[static_cast<size_t>(c.cp) * token_bytes.size() + g];
      record.kv_used_bytes += mine_used.tokens * token_bytes[g];
      record.kv_waste_bytes +=
          (mine_used.blocks * kv_.block_size() - mine_used.tokens) * token_bytes[g];
    }
  }
  return all;
}

}  // namespace testbed
