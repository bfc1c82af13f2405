#include "runtime/serving/executor.hpp"

#include <algorithm>

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
                   size_t n_kv_groups,
                   ExecutorOptions options)
    : device_(device),
      groups_(groups),
      model_(model),
      kv_(kv),
      n_kv_groups_(n_kv_groups),
      options_(options),
      workspace_(device) {}

void Executor::set_timeline(Timeline* timeline) {
  timeline_ = timeline;
  device_.set_sink(timeline);
  groups_.tp.set_sink(timeline);
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
  const int n_stages = model_.position.n_stages;
  const Workspace::Frame frame(workspace_);
  const MicrobatchRows rows(microbatch, n_kv_groups_, kv_.block_size());
  StepContext context{device_, groups_, workspace_, kv_, rows, timeline_};
  const Shape shape{rows.n_rows(), model_.config.d_model};

  const bool sends = !is_last(slot);
  const TensorView residual =
      sends ? outgoing_activations(shape) : workspace_.take(device_.compute_dtype(), shape);
  if (is_first(slot)) {
    enter(context, -1, Site::token_ids);
    const std::vector<int32_t> ids = resolve(microbatch.tokens);
    enter(context, -1, Site::embedding);
    chunk.embedding->forward(device_, groups_.tp, ids, residual);
  } else {
    enter(context, -1, Site::pipeline);
    groups_.pp.recv(residual, (model_.position.stage + n_stages - 1) % n_stages).wait();
  }

  ResidualStream stream(
      device_, groups_.tp, residual, workspace_.take(device_.compute_dtype(), shape));
  enter(context, -1, Site::other);
  stream.norm(chunk.blocks.front().input_norm());
  for (size_t i = 0; i < chunk.blocks.size(); ++i) {
    const NormWeight* next = i + 1 < chunk.blocks.size() ? &chunk.blocks[i + 1].input_norm()
                             : chunk.final_norm          ? &*chunk.final_norm
                                                         : nullptr;
    chunk.blocks[i].forward(context, model_.rope, stream, next);
  }
  if (options_.hash_residuals) {
    residual_hash_ = hash_bytes(
        {static_cast<const std::byte*>(residual.data()), static_cast<size_t>(residual.n_bytes())},
        residual_hash_);
  }
  if (sends) {
    enter(context, -1, Site::pipeline);
    outgoing_.back().sent = groups_.pp.send(residual, (model_.position.stage + 1) % n_stages);
  } else {
    sample_rows(plan, slot.microbatch, context, stream.normed());
  }
  const bool last_slot_of_microbatch = slot.virtual_stage == model_.position.n_virtual_stages - 1;
  if (model_.position.stage == 0 && n_stages > 1 && last_slot_of_microbatch) {
    enter(context, -1, Site::token_ids);
    expect_ids(plan, slot.microbatch);
  }
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
  std::vector<int64_t> wanted;
  for (const LogitsRow& row : mb.logits_rows) wanted.push_back(row.row);
  const TensorView x = workspace_.take(device_.compute_dtype(), {n_rows, model_.config.d_model});
  device_.gather_rows(normed, wanted, x);
  const TensorView logits = workspace_.take(DType::F32, {n_rows, head.n_local()});
  if (head.n_local() > 0) head.forward(device_, x, logits);

  const int64_t vocab_size = model_.config.vocab_size;
  if (options_.capture_logits) {
    const TensorView full = gather_logits(groups_.tp, workspace_, logits, vocab_size);
    for (int64_t r = 0; r < n_rows && groups_.tp.rank() == 0; ++r) {
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
  for (Outgoing& outgoing : outgoing_) outgoing.sent.wait();
  sampled_.clear();
}

// The oldest buffer is taken again once its message has left.
Executor::Outgoing& Executor::next_outgoing() {
  if (outgoing_.size() < most_outgoing_) return outgoing_.emplace_back();
  outgoing_.front().sent.wait();
  outgoing_.push_back(std::move(outgoing_.front()));
  outgoing_.pop_front();
  return outgoing_.back();
}

TensorView Executor::outgoing_activations(Shape shape) {
  Outgoing& outgoing = next_outgoing();
  if (outgoing.activations.n_elements() < shape.n_elements()) {
    outgoing.activations = device_.allocate(device_.compute_dtype(), {shape.n_elements()});
  }
  return {outgoing.activations.data(), device_.compute_dtype(), shape};
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
