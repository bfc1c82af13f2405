// Headlines, from the pass that has nothing inside its steps.
#include <algorithm>
#include <map>

#include "runtime/measure/breakdown.hpp"

namespace testbed {

namespace {

std::vector<double> step_times_ms(const GenerationTiming& repeat, Phase phase) {
  std::vector<double> times;
  for (const StepTiming& step : repeat.steps) {
    if (step.phase == phase) times.push_back(ns_to_ms(step.end_ns - step.begin_ns));
  }
  return times;
}

std::vector<double> all_step_times_ms(const AnalysisInput& input, Phase phase) {
  std::vector<double> times;
  for (const GenerationTiming& repeat : input.timed) {
    const std::vector<double> more = step_times_ms(repeat, phase);
    times.insert(times.end(), more.begin(), more.end());
  }
  return times;
}

// Time in the phase's steps. Replicas run at once: the one that takes longest counts.
double duration_s(const GenerationTiming& repeat, Phase phase) {
  std::map<int32_t, int64_t> time_ns;
  int64_t longest_ns = 0;
  for (const StepTiming& step : repeat.steps) {
    if (step.phase != phase) continue;
    int64_t& of_replica = time_ns[step.dp];
    of_replica += step.end_ns - step.begin_ns;
    longest_ns = std::max(longest_ns, of_replica);
  }
  return static_cast<double>(longest_ns) * 1e-9;
}

// Tokens of the phase's steps over their time.
void add_rate(const GenerationTiming& repeat,
              Phase phase,
              int64_t StepTiming::*tokens,
              Repeated& rates) {
  int64_t n_tokens = 0;
  for (const StepTiming& step : repeat.steps) {
    if (step.phase == phase) n_tokens += step.*tokens;
  }
  const double seconds = duration_s(repeat, phase);
  if (seconds > 0.0) rates.repeats.push_back(static_cast<double>(n_tokens) / seconds);
}

double ttft_ms(const RequestTiming& request) {
  return ns_to_ms(request.first_token_ns - request.arrival_ns);
}

// (last - first) / (n - 1); there is none for one token.
std::optional<double> tpot_ms(const RequestTiming& request) {
  if (request.n_generated < 2) return std::nullopt;
  return ns_to_ms(request.last_token_ns - request.first_token_ns) /
         static_cast<double>(request.n_generated - 1);
}

void add_requests(const AnalysisInput& input, RunRecord& record) {
  std::vector<std::vector<double>> ttft(record.run.requests.size());
  std::vector<std::vector<double>> tpot(record.run.requests.size());
  for (const GenerationTiming& repeat : input.timed) {
    for (const RequestTiming& request : repeat.requests) {
      if (request.n_generated == 0) continue;  // its first token was a stop token
      const auto index = static_cast<size_t>(request.request);
      ttft.at(index).push_back(ttft_ms(request));
      if (const auto value = tpot_ms(request)) tpot.at(index).push_back(*value);
    }
  }
  for (size_t i = 0; i < record.run.requests.size(); ++i) {
    if (!ttft[i].empty()) record.run.requests[i].ttft_ms = median(ttft[i]);
    if (!tpot[i].empty()) record.run.requests[i].tpot_ms = median(tpot[i]);
  }
}

}  // namespace

void add_timing(const AnalysisInput& input, RunRecord& record) {
  for (const GenerationTiming& repeat : input.timed) {
    std::vector<double> ttft;
    std::vector<double> tpot;
    for (const RequestTiming& request : repeat.requests) {
      if (request.n_generated > 0) ttft.push_back(ttft_ms(request));
      if (const auto value = tpot_ms(request)) tpot.push_back(*value);
    }
    TimingRecord& timing = record.timing;
    if (!ttft.empty()) timing.ttft_ms.repeats.push_back(median(ttft));
    if (!tpot.empty()) timing.tpot_ms.repeats.push_back(median(tpot));
    add_rate(repeat, Phase::prefill, &StepTiming::n_prompt_tokens, timing.prefill_tokens_per_s);
    add_rate(repeat, Phase::decode, &StepTiming::n_new_tokens, timing.decode_tokens_per_s);
  }
  for (const Phase phase : {Phase::decode, Phase::mixed, Phase::prefill}) {
    const std::vector<double> times = all_step_times_ms(input, phase);
    if (times.empty()) continue;
    record.timing.step_phase = phase_name(phase);
    record.timing.step_ms = summarise(times);
    break;
  }
  add_requests(input, record);
}

void add_phase_timing(const AnalysisInput& input, PhaseRecord& phase) {
  for (const GenerationTiming& repeat : input.timed) {
    const std::vector<double> times = step_times_ms(repeat, phase.phase);
    if (times.empty()) continue;
    phase.step_ms.repeats.push_back(mean(times));
    phase.duration_s.repeats.push_back(duration_s(repeat, phase.phase));
  }
  if (!phase.step_ms.empty()) {
    phase.step_ms_summary = summarise(all_step_times_ms(input, phase.phase));
  }
}

}  // namespace testbed
