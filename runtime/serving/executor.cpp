#include "runtime/serving/executor.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"

namespace testbed {
namespace {

int64_t n_sampled(const MicrobatchPlan& microbatch) {
  return std::count_if(microbatch.logits_rows.begin(),
                       microbatch.logits_rows.end(),
                       [](const LogitsRow& row) { return row.sample; });
}

}  // namespace

Executor::Executor(Device& device,
                   Groups groups,
                   const Model& model,
                   const KvCache& kv,
                   std::vector<KvGroup> kv_groups,
                   ExecutorOptions options)
    : device_(device),
      groups_(groups),
      model_(model),
      kv_(kv),
      kv_groups_(std::move(kv_groups)),
      options_(options),
      workspace_(device) {}

void Executor::set_timeline(Timeline* timeline) {
  timeline_ = timeline;
  device_.set_sink(timeline);
  groups_.tp.set_sink(timeline);
  groups_.cp.set_sink(timeline);
  groups_.ep.set_sink(timeline);
  groups_.pp.set_sink(timeline);
  groups_.pp_tokens.set_sink(timeline);
}

void Executor::submit(const StepPlan& plan) {
  const auto n_microbatches = static_cast<int>(plan.microbatches.size());
  const ShardPosition& position = model_.position;
  most_outgoing_ = static_cast<size_t>(std::max(4, 2 * n_microbatches));
  sampled_[plan.step];  // collect() may ask for a step that samples nothing: a chunk of a prompt
  for (const PipelineSlot slot :
       pipeline_schedule(n_microbatches, position.n_stages, position.n_virtual_stages)) {
    if (timeline_ != nullptr) {
      timeline_->scope() = {.phase = plan.phase,
                            .repeat = timeline_->scope().repeat,
                            .step = plan.step,
                            .microbatch = slot.microbatch};
    }
    run_slot(plan, slot);
  }
  constexpr int32_t steps_kept = 4;  // a plan refers at most to the step before
  sampled_.erase(sampled_.begin(), sampled_.lower_bound(plan.step - steps_kept));
}

void Executor::run_slot(const StepPlan& plan, PipelineSlot slot) {
  const MicrobatchPlan& microbatch = plan.microbatches[static_cast<size_t>(slot.microbatch)];
  const PipelineChunk& chunk = model_.chunks[static_cast<size_t>(slot.virtual_stage)];
  const ShardPosition& position = model_.position;
  const Workspace::Frame frame(workspace_);
  const MicrobatchRows rows(
      microbatch, kv_groups_, kv_.block_size(), position.cp, position.cp_rank);
  StepContext context{device_, groups_, workspace_, kv_, rows, timeline_};
  if (timeline_ != nullptr) {
    timeline_->scope().copy = rows.cp_use == CpUse::merge && position.cp_rank > 0;
  }
  if (options_.capture_logits && position.tp_rank == 0) {
    context.on_routed = [&](int64_t layer, const Tensor& ids) { capture_routes(rows, layer, ids); };
  }

  const int64_t n_held = ResidualStream::n_held(position.tp_comm, groups_.tp, rows.n_rows());
  const Shape held{n_held, model_.config.d_model};
  const bool sends = !is_last(slot);
  const TensorView residual = sends ? outgoing_activations(held, per_layer_shape(n_held))
                                    : workspace_.take(device_.compute_dtype(), held);
  ResidualStream stream(device_, groups_.tp, position.tp_comm, workspace_, residual, rows.n_rows());
  start_stream(microbatch, slot, context, stream);
  run_blocks(chunk, context, stream);
  if (sends) {
    send_on(context, stream);
  } else {
    sample_rows(plan, slot.microbatch, context, stream.normed());
  }
  const bool last_slot_of_microbatch = slot.virtual_stage == position.n_virtual_stages - 1;
  if (position.stage == 0 && position.n_stages > 1 && last_slot_of_microbatch) {
    enter(context, -1, Site::token_ids);
    expect_ids(plan, slot.microbatch);
  }
}

void Executor::start_stream(const MicrobatchPlan& microbatch,
                            PipelineSlot slot,
                            StepContext& context,
                            ResidualStream& stream) {
  const PipelineChunk& chunk = model_.chunks[static_cast<size_t>(slot.virtual_stage)];
  if (is_first(slot)) {
    embed(microbatch, chunk, context, stream);
  } else {
    const int n_stages = model_.position.n_stages;
    const int previous = (model_.position.stage + n_stages - 1) % n_stages;
    enter(context, -1, Site::pipeline);
    groups_.pp.recv(stream.held(), previous).wait();
    if (model_.config.per_layer_input) {
      context.per_layer_inputs =
          workspace_.take(device_.compute_dtype(), per_layer_shape(stream.held().n_rows()));
      groups_.pp.recv(context.per_layer_inputs, previous).wait();
    }
  }
  enter(context, -1, Site::other);
  stream.norm(chunk.blocks.front().norms.input);
}

void Executor::embed(const MicrobatchPlan& microbatch,
                     const PipelineChunk& chunk,
                     StepContext& context,
                     ResidualStream& stream) {
  enter(context, -1, Site::token_ids);
  const std::vector<int32_t> all_ids = resolve(microbatch.tokens);
  std::vector<int32_t> ids;
  ids.reserve(context.rows.plan_rows.size());
  for (const int64_t row : context.rows.plan_rows) {
    ids.push_back(all_ids[static_cast<size_t>(row)]);
  }
  enter(context, -1, Site::embedding);
  const TensorView partial = stream.start_buffer();
  chunk.embedding->forward(device_, ids, partial);
  stream.start(partial);
  if (model_.config.scaled_embedding) device_.scale(stream.held(), model_.embedding_scale);
  if (chunk.per_layer) {
    context.per_layer_inputs = make_per_layer_inputs(*chunk.per_layer, ids, context, stream);
  }
}

// (norm(projection(x)) + table[ids]) / sqrt(2), of the rows held. One all-reduce over tp of
// [m, n_layers * dim].
TensorView Executor::make_per_layer_inputs(const PerLayerEmbedding& embedding,
                                           std::span<const int32_t> ids,
                                           StepContext& context,
                                           const ResidualStream& stream) {
  const IndexRange held = stream.held_rows();
  const int64_t width = embedding.n_layers * embedding.dim;
  const DType dtype = device_.compute_dtype();
  const TensorView result = context.workspace.take(dtype, {held.size(), width});
  const TensorView tokens =
      context.workspace.take(dtype, {static_cast<int64_t>(ids.size()), width});
  embedding.table.forward(device_, ids, tokens);
  groups_.tp.all_reduce(tokens);
  device_.scale(tokens, embedding.table_scale);

  embedding.projection.forward(device_, stream.held(), result, stream.holds_own_rows());
  device_.scale(result, embedding.projection_scale);
  const TensorView per_layer = result.reshaped({held.size() * embedding.n_layers, embedding.dim});
  device_.rms_norm(per_layer, embedding.norm.weight, embedding.norm.eps, per_layer);
  device_.add(result, tokens.rows(held.begin, held.size()));
  constexpr float half_root = 0.70710678F;
  device_.scale(result, half_root);
  return result.reshaped(per_layer_shape(held.size()));
}

void Executor::run_blocks(const PipelineChunk& chunk,
                          StepContext& context,
                          ResidualStream& stream) {
  for (size_t i = 0; i < chunk.blocks.size(); ++i) {
    const NormWeight* next = i + 1 < chunk.blocks.size() ? &chunk.blocks[i + 1].norms.input
                             : chunk.final_norm          ? &*chunk.final_norm
                                                         : nullptr;
    chunk.blocks[i].forward(context, model_.rope, stream, next);
    if (options_.check_finite) require_finite(context, stream.held(), chunk.blocks[i].layer);
  }
  if (options_.hash_residuals) {
    const TensorView all = stream.gathered();
    uint64_t& hash =
        context.rows.cp_use == CpUse::merge ? residual_hash_.of_tp_and_cp : residual_hash_.of_tp;
    hash = hash_bytes(
        {static_cast<const std::byte*>(all.data()), static_cast<size_t>(all.n_bytes())}, hash);
  }
}

void Executor::require_finite(StepContext& context, TensorView x, int64_t layer) const {
  if (context.device.all_finite(x)) return;
  const GroupInfo& group = groups_.tp.group();
  throw NumericError(
      fmt::format("layer {} on rank {}: its output is not finite in {} (overflow, "
                  "or weights that are not finite)",
                  layer,
                  group.world_ranks[static_cast<size_t>(group.rank)],
                  dtype_name(context.device.compute_dtype())));
}

void Executor::send_on(StepContext& context, const ResidualStream& stream) {
  const int next = (model_.position.stage + 1) % model_.position.n_stages;
  enter(context, -1, Site::pipeline);
  Outgoing& outgoing = outgoing_.back();
  outgoing.sent = groups_.pp.send(stream.held(), next);
  if (!model_.config.per_layer_input) return;
  // Behind the residual in the same buffer, which lives until both are sent.
  const TensorView copy(
      static_cast<std::byte*>(outgoing.activations.data()) + stream.held().n_bytes(),
      device_.compute_dtype(),
      context.per_layer_inputs.shape());
  const int64_t width = copy.shape()[1] * copy.shape()[2];
  device_.copy_columns(context.per_layer_inputs.reshaped({copy.shape()[0], width}),
                       0,
                       width,
                       copy.reshaped({copy.shape()[0], width}),
                       0);
  outgoing.sent_inputs = groups_.pp.send(copy, next);
}

void Executor::capture_routes(const MicrobatchRows& rows, int64_t layer, const Tensor& ids) {
  if (rows.cp_use == CpUse::merge && model_.position.cp_rank > 0) return;  // copies
  const int64_t top_k = ids.shape()[1];
  for (int64_t row = 0; row < rows.n_rows(); ++row) {
    const int32_t* begin = ids.as<int32_t>() + row * top_k;
    routes_.push_back({.request = rows.requests[static_cast<size_t>(row)],
                       .layer = static_cast<int32_t>(layer),
                       .position = rows.positions[static_cast<size_t>(row)],
                       .ids = {begin, begin + top_k}});
  }
}

Shape Executor::per_layer_shape(int64_t n_rows) const {
  const auto& input = model_.config.per_layer_input;
  return {n_rows, model_.config.n_layers, input ? input->dim : 0};
}

void Executor::sample_rows(const StepPlan& plan,
                           int microbatch,
                           StepContext& context,
                           TensorView normed) {
  const MicrobatchPlan& mb = plan.microbatches[static_cast<size_t>(microbatch)];
  std::vector<int32_t> chosen =
      mb.logits_rows.empty() ? std::vector<int32_t>{} : choose_ids(mb, context, normed);
  if (model_.position.n_stages == 1) {
    sampled_[plan.step][microbatch].ids = std::move(chosen);
    return;
  }
  // A microbatch that samples nothing returns a word all the same: the first stage then knows that
  // it has left the pipeline, and a prefill step is flushed whether it samples or not.
  if (chosen.empty()) chosen.push_back(-1);
  enter(context, -1, Site::token_ids);
  Outgoing& outgoing = next_outgoing();
  outgoing.ids = std::move(chosen);
  outgoing.sent = groups_.pp_tokens.send(
      {outgoing.ids.data(), DType::I32, {static_cast<int64_t>(outgoing.ids.size())}}, 0);
}

std::vector<int32_t> Executor::choose_ids(const MicrobatchPlan& mb,
                                          StepContext& context,
                                          TensorView normed) {
  enter(context, -1, Site::head);
  const VocabularyParallelHead& head = *model_.chunks.back().head;
  const auto n_rows = static_cast<int64_t>(mb.logits_rows.size());
  const TensorView x = workspace_.take(device_.compute_dtype(), {n_rows, model_.config.d_model});
  device_.gather_rows(normed, context.rows.logits_rows, x);
  // Rows that another cp rank has are zero here: the sum brings them together, exactly.
  if (context.rows.cp_use == CpUse::ring) groups_.cp.all_reduce(x);
  const TensorView logits = workspace_.take(DType::F32, {n_rows, head.n_local()});
  if (head.n_local() > 0) {
    // Around the ring every rank computes all rows, and each counts its own.
    const std::vector<int64_t>& mine = context.rows.logits_rows;
    head.forward(device_, x, logits, n_rows - std::count(mine.begin(), mine.end(), int64_t{-1}));
    if (const auto cap = model_.config.final_softcap) {
      device_.softcap(logits, static_cast<float>(*cap));
    }
  }

  const int64_t vocab_size = model_.config.vocab_size;
  if (options_.capture_logits) {
    const bool captures = groups_.tp.rank() == 0 && groups_.cp.rank() == 0;
    const TensorView full = gather_logits(groups_.tp, workspace_, logits, vocab_size);
    for (int64_t r = 0; r < n_rows && captures; ++r) {
      const float* begin = full.as<float>() + r * vocab_size;
      captured_.push_back({mb.logits_rows[static_cast<size_t>(r)], {begin, begin + vocab_size}});
    }
  }
  const std::vector<int32_t> ids = sample(device_,
                                          groups_.tp,
                                          workspace_,
                                          options_.sampling,
                                          logits,
                                          head.first_id(),
                                          vocab_size,
                                          mb.logits_rows);
  std::vector<int32_t> chosen;
  for (size_t r = 0; r < ids.size(); ++r) {
    if (mb.logits_rows[r].sample) chosen.push_back(ids[r]);
  }
  return chosen;
}

void Executor::expect_ids(const StepPlan& plan, int microbatch) {
  const MicrobatchPlan& mb = plan.microbatches[static_cast<size_t>(microbatch)];
  Sampled& sampled = sampled_[plan.step][microbatch];
  sampled.ids.resize(static_cast<size_t>(n_sampled(mb)));
  const TensorView buffer =
      sampled.ids.empty()
          ? TensorView(&sampled.nothing, DType::I32, {1})
          : TensorView(sampled.ids.data(), DType::I32, {static_cast<int64_t>(sampled.ids.size())});
  sampled.pending = groups_.pp_tokens.recv(buffer, model_.position.n_stages - 1);
}

std::vector<int32_t> Executor::resolve(const std::vector<TokenSource>& tokens) {
  std::vector<int32_t> ids;
  ids.reserve(tokens.size());
  for (const TokenSource& token : tokens) {
    ids.push_back(token.id >= 0 ? token.id : sampled_id(token.step, token.slot));
  }
  return ids;
}

int32_t Executor::sampled_id(int32_t step, int32_t slot) {
  const auto of_step = sampled_.find(step);
  CHECK(of_step != sampled_.end());
  auto index = static_cast<size_t>(slot);
  for (auto& [microbatch, sampled] : of_step->second) {
    if (index < sampled.ids.size()) {
      sampled.pending.wait();
      return sampled.ids[index];
    }
    index -= sampled.ids.size();
  }
  throw InternalError("a plan refers to a slot that its step did not sample");
}

std::vector<int32_t> Executor::collect(int32_t step) {
  std::vector<int32_t> ids;
  const auto of_step = sampled_.find(step);
  CHECK(of_step != sampled_.end());
  if (timeline_ != nullptr) {
    timeline_->scope().layer = -1;
    timeline_->scope().site = Site::token_ids;
  }
  for (auto& [microbatch, sampled] : of_step->second) {
    sampled.pending.wait();
    ids.insert(ids.end(), sampled.ids.begin(), sampled.ids.end());
  }
  return ids;
}

void Executor::drain() {
  for (Outgoing& outgoing : outgoing_) {
    outgoing.sent.wait();
    outgoing.sent_inputs.wait();
  }
  sampled_.clear();
}

// The oldest buffer is taken again once its message has left.
Executor::Outgoing& Executor::next_outgoing() {
  if (outgoing_.size() < most_outgoing_) return outgoing_.emplace_back();
  outgoing_.front().sent.wait();
  outgoing_.front().sent_inputs.wait();
  outgoing_.push_back(std::move(outgoing_.front()));
  outgoing_.pop_front();
  return outgoing_.back();
}

TensorView Executor::outgoing_activations(const Shape& residual, const Shape& per_layer_inputs) {
  Outgoing& outgoing = next_outgoing();
  const int64_t n_elements = residual.n_elements() + per_layer_inputs.n_elements();
  if (outgoing.activations.n_elements() < n_elements) {
    outgoing.activations = device_.allocate(device_.compute_dtype(), {n_elements});
  }
  return {outgoing.activations.data(), device_.compute_dtype(), residual};
}

bool Executor::is_first(PipelineSlot slot) const {
  return model_.position.chunk(slot.virtual_stage) == 0;
}

bool Executor::is_last(PipelineSlot slot) const {
  return model_.position.chunk(slot.virtual_stage) == model_.position.n_chunks() - 1;
}

int64_t Executor::workspace_bytes() const {
  int64_t total = workspace_.allocated_bytes();
  for (const Outgoing& outgoing : outgoing_) total += outgoing.activations.n_bytes();
  return total;
}

}  // namespace testbed
