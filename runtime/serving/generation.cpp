#include "runtime/serving/generation.hpp"

#include "runtime/serving/lockstep.hpp"

namespace testbed {
namespace {

// Stamps a rank's steps so that they tile the generation (StepEvent).
class StepStamps {
 public:
  StepStamps(const Clock& clock, Timeline* timeline, int32_t repeat)
      : clock_(clock), timeline_(timeline) {
    if (timeline_ == nullptr) return;
    timeline_->scope() = {.repeat = repeat};
    step_.repeat = repeat;
    step_.begin_ns = clock_.now_ns();
    step_.step = -1;
  }
  void plan_arrived(const StepPlan& plan) {
    if (timeline_ == nullptr) return;
    const int64_t now = clock_.now_ns();
    if (step_.step >= 0) {
      close(now);
      step_.begin_ns = now;
    }
    step_.step = plan.step;
    step_.phase = plan.phase;
    step_.plan_ns = now;
  }
  void work_done() {
    if (timeline_ != nullptr) step_.work_end_ns = clock_.now_ns();
  }
  void finish() {
    if (timeline_ != nullptr && step_.step >= 0) close(clock_.now_ns());
  }

 private:
  void close(int64_t now) {
    step_.end_ns = now;
    timeline_->on_step(step_);
  }
  const Clock& clock_;
  Timeline* timeline_;
  StepEvent step_;
};

// What the scheduling rank saw of its requests and steps.
class TimingLog {
 public:
  TimingLog(const Clock& clock, const Replica& replica, const std::vector<Request>& requests)
      : clock_(clock), dp_(replica.dp), begin_ns_(clock_.now_ns()), step_begin_ns_(begin_ns_) {
    for (const Request& request : requests) {
      timing_.requests.push_back({.request = request.index, .arrival_ns = begin_ns_});
    }
  }
  void step_done(const StepPlan& plan, const Scheduler& scheduler) {
    const int64_t now = clock_.now_ns();
    StepTiming step{.dp = dp_, .phase = plan.phase, .begin_ns = step_begin_ns_, .end_ns = now};
    for (const MicrobatchPlan& microbatch : plan.microbatches) {
      if (plan.phase == Phase::prefill) step.n_prompt_tokens += microbatch.n_rows();
    }
    step.n_new_tokens = static_cast<int64_t>(scheduler.last_accepted().size());
    timing_.steps.push_back(step);
    step_begin_ns_ = now;
    for (const auto& [request, id] : scheduler.last_accepted()) {
      RequestTiming& timing = timing_.requests[request];
      if (timing.n_generated++ == 0) timing.first_token_ns = now;
      timing.last_token_ns = now;
    }
  }
  GenerationTiming take() { return std::move(timing_); }

 private:
  const Clock& clock_;
  int dp_;
  int64_t begin_ns_;
  int64_t step_begin_ns_;
  GenerationTiming timing_;
};

void send_to_others(const Replica& replica, const Bytes& message) {
  for (const int rank : replica.ranks) {
    if (rank != replica.rank) replica.control.post(message, rank);
  }
}

GenerationResult schedule(const Replica& replica,
                          Executor& executor,
                          const std::vector<Request>& requests,
                          const GenerationOptions& options) {
  StepStamps stamps(executor.clock(), options.timeline, options.repeat);
  TimingLog log(executor.host_clock(), replica, requests);
  Scheduler scheduler(requests, options.scheduler);
  const auto settle = [&](const StepPlan& plan) {
    scheduler.update(plan.step, executor.collect(plan.step));
    log.step_done(plan, scheduler);
    if (!options.on_token) return;
    for (const auto& [request, id] : scheduler.last_accepted()) options.on_token(request, id);
  };
  const auto next_plan = [&] {
    return replica.in_step.empty() ? scheduler.next()
                                   : next_in_lockstep(replica.control, replica.in_step, scheduler);
  };

  std::optional<StepPlan> out;  // a decode step whose ids have not been collected
  while (std::optional<StepPlan> plan = next_plan()) {
    stamps.plan_arrived(*plan);
    send_to_others(replica, serialise(*plan));
    executor.submit(*plan);
    if (out) settle(*out);
    out.reset();
    if (plan->phase == Phase::decode && options.scheduler.run_ahead) {
      out = std::move(plan);
    } else {
      settle(*plan);
    }
    stamps.work_done();
  }
  if (out) settle(*out);
  stamps.work_done();
  send_to_others(replica, {});
  executor.drain();
  stamps.finish();

  GenerationResult result{.timing = log.take(), .generated = {}, .peak_kv = {}};
  result.generated.reserve(scheduler.n_requests());
  for (size_t i = 0; i < scheduler.n_requests(); ++i) {
    result.generated.push_back(scheduler.generated(i));
  }
  for (int rank = 0; rank < options.scheduler.cp; ++rank) {
    for (size_t g = 0; g < options.scheduler.kv_groups.size(); ++g) {
      result.peak_kv.push_back(scheduler.peak_usage(rank, g));
    }
  }
  return result;
}

void follow(const Replica& replica, Executor& executor, const GenerationOptions& options) {
  StepStamps stamps(executor.clock(), options.timeline, options.repeat);
  while (true) {
    const Bytes message = replica.control.receive(replica.ranks.front());
    if (message.empty()) break;
    const StepPlan plan = parse_step_plan(message);
    stamps.plan_arrived(plan);
    executor.submit(plan);
    stamps.work_done();
  }
  executor.drain();
  stamps.finish();
}

}  // namespace

GenerationResult generate(const Replica& replica,
                          Executor& executor,
                          const std::vector<Request>& requests,
                          const GenerationOptions& options) {
  executor.set_timeline(options.timeline);
  GenerationResult result;
  if (replica.schedules()) {
    result = schedule(replica, executor, requests, options);
  } else {
    follow(replica, executor, options);
  }
  executor.set_timeline(nullptr);
  return result;
}

}  // namespace testbed
