#include "runtime/serving/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"

namespace testbed {
namespace {

int64_t n_sampled(const MicrobatchPlan& microbatch) {
  return std::count_if(microbatch.logits_rows.begin(),
                       microbatch.logits_rows.end(),
                       [](const LogitsRow& row) { return row.sample; });
}

uint64_t next_number() {
  static uint64_t n_made = 0;
  return n_made++;
}

}  // namespace

Executor::Executor(Device& device,
                   Groups groups,
                   const Model& model,
                   const KvCache& kv,
                   std::vector<KvGroup> kv_groups,
                   ExecutorOptions options)
    : number_(next_number()),
      device_(device),
      groups_(groups),
      model_(model),
      kv_(kv),
      kv_groups_(std::move(kv_groups)),
      options_(options),
      // Partial sums are in it: all-reduces then work on them where they are.
      workspace_([this](DType dtype, Shape shape) {
        std::optional<Tensor> shared = groups_.tp.allocate(dtype, shape);
        return shared ? std::move(*shared) : device_.allocate(dtype, shape);
      }) {}

void Executor::set_timeline(Timeline* timeline) {
  timeline_ = timeline;
  device_.set_sink(timeline);
  groups_.tp.set_sink(timeline);
  groups_.cp.set_sink(timeline);
  groups_.ep.set_sink(timeline);
  groups_.pp.set_sink(timeline);
  groups_.tp_host.set_sink(timeline);
  groups_.ep_host.set_sink(timeline);
  groups_.pp_tokens.set_sink(timeline);
}

void Executor::submit(const StepPlan& plan) {
  const NamedRange step(device_, phase_name(plan.phase), plan.step);
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
  if (timeline_ != nullptr) device_.settle_stamps();
  constexpr int32_t steps_kept = 4;  // a plan refers at most to the step before
  sampled_.erase(sampled_.begin(), sampled_.lower_bound(plan.step - steps_kept));
}

void Executor::run_slot(const StepPlan& plan, PipelineSlot slot) {
  const NamedRange range(device_, "microbatch", slot.microbatch);
  const MicrobatchPlan& microbatch = plan.microbatches[static_cast<size_t>(slot.microbatch)];
  const PipelineChunk& chunk = model_.chunks[static_cast<size_t>(slot.virtual_stage)];
  const ShardPosition& position = model_.position;
  const Workspace::Frame frame(workspace_);
  const MicrobatchRows rows(
      microbatch, kv_groups_, kv_.block_size(), position.cp, position.cp_rank);
  StepContext context{device_, groups_, workspace_, kv_, rows, timeline_};
  if (timeline_ != nullptr) timeline_->scope().copy = rows.are_copies;
  if (options_.capture_logits && position.tp_rank == 0) {
    context.on_routed = [&](int64_t layer, const Tensor& ids) { capture_routes(rows, layer, ids); };
  }

  const int64_t n_held = ResidualStream::n_held(position.tp_comm, groups_.tp, rows.n_rows());
  const Shape held{n_held, model_.config.d_model};
  const bool sends = !is_last(slot);
  const int64_t n_most = ResidualStream::most_held(position.tp_comm, groups_.tp, rows.n_rows());
  const TensorView residual =
      sends ? outgoing_activations(held, n_most) : workspace_.take(device_.compute_dtype(), held);
  ResidualStream stream(device_, groups_.tp, position.tp_comm, workspace_, residual, rows.n_rows());
  ResidualMarker marker(context, plan.step, slot.microbatch, marks_);
  if (options_.mark_residuals) stream.set_observer(&marker);
  std::vector<int32_t> ids;
  if (is_first(slot)) {
    enter(context, -1, Site::token_ids);
    ids = row_ids(microbatch, rows);
    if (options_.mark_residuals) marker.on_ids(ids);
  } else {
    receive(context, stream);
  }
  TensorView logits;
  device_.section(
      section_key(plan, slot),
      [&] {
        if (is_first(slot)) embed(ids, chunk, context, stream);
        enter(context, -1, Site::other);
        stream.norm(chunk.blocks.front().norms.input);
        run_blocks(chunk, context, stream);
        if (!sends) logits = make_logits(microbatch, context, stream.normed());
        if (options_.mark_residuals && !logits.empty()) marker.on_partial(logits);
      },
      [&] { groups_.tp_host.barrier(); });
  if (sends) {
    send_on(context, stream);
  } else {
    sample_rows(plan, slot.microbatch, context, logits);
  }
  const bool last_slot_of_microbatch = slot.virtual_stage == position.n_virtual_stages - 1;
  if (position.stage == 0 && position.n_stages > 1 && last_slot_of_microbatch) {
    enter(context, -1, Site::token_ids);
    expect_ids(plan, slot.microbatch);
  }
}

uint64_t Executor::section_key(const StepPlan& plan, PipelineSlot slot) const {
  const bool is_looked_at = options_.capture_logits || options_.hash_residuals ||
                            options_.mark_residuals || options_.check_finite;
  if (plan.phase != Phase::decode || is_looked_at ||
      !replays_decoding(device_, model_.config, groups_.cp.size())) {
    return 0;
  }
  const MicrobatchPlan& microbatch = plan.microbatches[static_cast<size_t>(slot.microbatch)];
  int64_t longest = 0;
  for (const PlanSequence& sequence : microbatch.sequences) {
    longest = std::max(longest, sequence.first_position + sequence.n_rows);
  }
  // A buffer that has grown is another: not all ranks need have rows in it to notice.
  const Outgoing* leaves = is_last(slot) ? nullptr : &outgoing_.back();
  // Kernels divide a context by its order of magnitude.
  const std::array<uint64_t, 9> shape{static_cast<uint64_t>(slot.virtual_stage),
                                      static_cast<uint64_t>(microbatch.n_rows()),
                                      microbatch.sequences.size(),
                                      microbatch.logits_rows.size(),
                                      std::bit_ceil(static_cast<uint64_t>(longest)),
                                      timeline_ != nullptr ? uint64_t{1} : 0,
                                      leaves == nullptr ? 0 : leaves->number,
                                      leaves == nullptr ? 0 : leaves->n_grown,
                                      number_};
  return hash_bytes(std::as_bytes(std::span(shape))) | 1;
}

void Executor::receive(StepContext& context, const ResidualStream& stream) {
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

std::vector<int32_t> Executor::row_ids(const MicrobatchPlan& microbatch,
                                       const MicrobatchRows& rows) {
  const std::vector<int32_t> all_ids = resolve(microbatch.tokens);
  std::vector<int32_t> ids;
  ids.reserve(rows.plan_rows.size());
  for (const int64_t row : rows.plan_rows) ids.push_back(all_ids[static_cast<size_t>(row)]);
  return ids;
}

void Executor::embed(std::span<const int32_t> ids,
                     const PipelineChunk& chunk,
                     StepContext& context,
                     ResidualStream& stream) {
  enter(context, -1, Site::embedding);
  const TensorView partial = stream.start_buffer();
  chunk.embedding->forward(device_, ids, partial);
  stream.start(partial);
  if (model_.config.scaled_embedding) device_.scale(stream.held(), model_.embedding_scale);
  if (chunk.per_layer) {
    context.per_layer_inputs = make_per_layer_inputs(*chunk.per_layer, ids, stream);
  }
}

// (norm(projection(x)) + table[ids]) / sqrt(2), of the rows held. One all-reduce over tp of
// [m, n_layers * dim].
TensorView Executor::make_per_layer_inputs(const PerLayerEmbedding& embedding,
                                           std::span<const int32_t> ids,
                                           const ResidualStream& stream) {
  const IndexRange held = stream.held_rows();
  const Shape shape = per_layer_shape(held.size());
  const int64_t width = shape[1] * shape[2];
  const DType dtype = device_.compute_dtype();
  const TensorView result = workspace_.take(dtype, {held.size(), width});
  const TensorView tokens = workspace_.take(dtype, {static_cast<int64_t>(ids.size()), width});
  embedding.table.forward(device_, ids, tokens);
  groups_.tp.all_reduce(tokens);
  device_.scale(tokens, embedding.table_scale);

  embedding.projection.forward(device_, stream.held(), result, stream.holds_own_rows());
  device_.scale(result, embedding.projection_scale);
  const TensorView per_layer = result.reshaped({held.size() * shape[1], shape[2]});
  device_.rms_norm(per_layer, embedding.norm.weight, embedding.norm.eps, per_layer);
  device_.add(result, tokens.rows(held.begin, held.size()));
  constexpr float half_root = 0.70710678F;
  device_.scale(result, half_root);
  return result.reshaped(shape);
}

void Executor::run_blocks(const PipelineChunk& chunk,
                          StepContext& context,
                          ResidualStream& stream) {
  for (size_t i = 0; i < chunk.blocks.size(); ++i) {
    const NormWeight* next = i + 1 < chunk.blocks.size() ? &chunk.blocks[i + 1].norms.input
                             : chunk.final_norm          ? &*chunk.final_norm
                                                         : nullptr;
    chunk.blocks[i].forward(context, model_.rope, stream, next);
    if (options_.check_finite) require_finite(stream.held(), chunk.blocks[i].layer);
  }
  if (options_.hash_residuals) {
    const TensorView held = stream.gathered();
    const Tensor all(held.dtype(), held.shape());
    device_.download(held, all);
    uint64_t& hash =
        context.rows.cp_use == CpUse::merge ? residual_hash_.of_tp_and_cp : residual_hash_.of_tp;
    hash = hash_bytes(
        {static_cast<const std::byte*>(all.data()), static_cast<size_t>(all.n_bytes())}, hash);
  }
}

void Executor::require_finite(TensorView x, int64_t layer) const {
  if (device_.all_finite(x)) return;
  const GroupInfo& group = groups_.tp.group();
  throw NumericError(
      fmt::format("layer {} on rank {}: its output is not finite in {} (overflow, "
                  "or weights that are not finite)",
                  layer,
                  group.world_ranks[static_cast<size_t>(group.rank)],
                  dtype_name(device_.compute_dtype())));
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
  if (rows.are_copies) return;
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
                           TensorView logits) {
  const MicrobatchPlan& mb = plan.microbatches[static_cast<size_t>(microbatch)];
  std::vector<int32_t> chosen =
      mb.logits_rows.empty() ? std::vector<int32_t>{} : choose_ids(mb, logits);
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

TensorView Executor::make_logits(const MicrobatchPlan& mb,
                                 StepContext& context,
                                 TensorView normed) {
  if (mb.logits_rows.empty()) return {};
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
  return logits;
}

std::vector<int32_t> Executor::choose_ids(const MicrobatchPlan& mb, TensorView logits) {
  const VocabularyParallelHead& head = *model_.chunks.back().head;
  const auto n_rows = static_cast<int64_t>(mb.logits_rows.size());
  const int64_t vocab_size = model_.config.vocab_size;
  if (options_.capture_logits) {
    const bool captures = groups_.tp.rank() == 0 && groups_.cp.rank() == 0;
    const Tensor full = gather_logits(device_, groups_.tp_host, logits, vocab_size);
    for (int64_t r = 0; r < n_rows && captures; ++r) {
      const float* begin = full.as<float>() + r * vocab_size;
      captured_.push_back({mb.logits_rows[static_cast<size_t>(r)], {begin, begin + vocab_size}});
    }
  }
  const std::vector<int32_t> ids = sample(device_,
                                          groups_.tp_host,
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
  if (outgoing_.size() < most_outgoing_) {
    Outgoing& made = outgoing_.emplace_back();
    made.number = outgoing_.size();
    return made;
  }
  outgoing_.front().sent.wait();
  outgoing_.front().sent_inputs.wait();
  outgoing_.push_back(std::move(outgoing_.front()));
  outgoing_.pop_front();
  return outgoing_.back();
}

TensorView Executor::outgoing_activations(const Shape& residual, int64_t n_most) {
  Outgoing& outgoing = next_outgoing();
  const int64_t n_elements = n_most * model_.config.d_model + per_layer_shape(n_most).n_elements();
  if (outgoing.activations.n_elements() < n_elements) {
    outgoing.activations = device_.allocate(device_.compute_dtype(), {n_elements});
    ++outgoing.n_grown;
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
