// Devices: how fast each reads weights and multiplies while all others do too, held against the
// profile and against one another.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "runtime/accept/case_failure.hpp"
#include "runtime/accept/device_judgement.hpp"
#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/accept/gemm_rate.hpp"
#include "runtime/accept/shared_cores.hpp"
#include "runtime/accept/stage.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/probe/collective_timing.hpp"

namespace testbed {
namespace {

// Devices that are measured once more by themselves, which tells what the others do to them.
constexpr size_t most_alone = 8;
// Of products; where ranks take turns on cores a sample has to last for many turns.
constexpr double gemm_sample_s = 0.03;
constexpr double shared_gemm_sample_s = 0.2;

// What is measured of every device.
struct Rate {
  FigureKey key;
  double unit = 1e9;               // of the figure, per second
  std::string does;                // "reads"
  std::function<double()> sample;  // per second
};

// All at once, again and again, so that what disturbs one disturbs its neighbours too.
std::vector<std::vector<double>> together(const AcceptContext& context, const Rate& rate) {
  std::vector<double> mine;
  mine.reserve(static_cast<size_t>(context.config.repeats));
  agree_on(context.control, [&] { rate.sample(); });  // warm-up
  for (int repeat = 0; repeat < context.config.repeats; ++repeat) {
    agree_on(context.control, [&] { mine.push_back(rate.sample() / rate.unit); });
  }
  return values_of_all(context.control, mine);
}

// Medians of these ranks, one after the other while the rest waits.
std::vector<double> alone(const AcceptContext& context,
                          const Rate& rate,
                          const std::vector<int>& ranks) {
  std::vector<double> mine;
  mine.reserve(static_cast<size_t>(context.config.repeats));
  for (const int rank : ranks) {
    agree_on(context.control, [&] {
      for (int repeat = 0; rank == context.rank && repeat < context.config.repeats; ++repeat) {
        mine.push_back(rate.sample() / rate.unit);
      }
    });
  }
  const std::vector<std::vector<double>> all = values_of_all(context.control, mine);
  std::vector<double> medians;
  medians.reserve(ranks.size());
  for (const int rank : ranks) medians.push_back(median(all[static_cast<size_t>(rank)]));
  return medians;
}

std::string what_of(const Rate& rate,
                    const Figure& figure,
                    const SlowDevice& device,
                    std::optional<double> by_itself) {
  std::string text = fmt::format("{} {:.4g} {}", rate.does, median(figure.samples), figure.unit);
  if (device.cohort) text += fmt::format(", its cohort {:.4g}", *device.cohort);
  if (device.misses_gate) text += fmt::format(", expected {:.4g}", figure.gate->expected);
  if (by_itself) text += fmt::format("; by itself {:.4g}", *by_itself);
  return text;
}

void blame(const AcceptContext& context,
           const SlowDevice& device,
           const std::string& what,
           CaseResult& result) {
  const std::string& host = context.hosts[device.rank];
  const auto rank = static_cast<int>(device.rank);
  result.blamed.push_back(
      {.kind = Blame::Kind::device, .ranks = {rank}, .host = host, .what = what});
  fail(result, fmt::format("device of rank {} ({}) {}", rank, host, what));
}

CaseResult measure(const AcceptContext& context, const PlannedCase& planned, const Rate& rate) {
  CaseResult result{.stage = planned.stage, .name = planned.name};
  const std::vector<std::vector<double>> samples = together(context, rate);
  for (size_t rank = 0; rank < samples.size(); ++rank) {
    result.figures.push_back(
        judged(context.profile, rate.key, samples[rank], {static_cast<int>(rank)}));
  }
  const std::vector<SlowDevice> slow =
      slow_devices(result.figures, context.profile.cohort_tolerance);
  std::vector<int> suspects;  // the same on every rank: all have all samples
  suspects.reserve(slow.size());
  for (const SlowDevice& device : slow) {
    if (suspects.size() < most_alone) suspects.push_back(static_cast<int>(device.rank));
  }
  const std::vector<double> by_themselves =
      context.size > 1 ? alone(context, rate, suspects) : std::vector<double>{};
  if (context.rank != 0) return {};
  judge(result);
  for (size_t i = 0; i < slow.size(); ++i) {
    std::optional<double> by_itself;
    if (i < by_themselves.size()) by_itself = by_themselves[i];
    blame(
        context, slow[i], what_of(rate, result.figures[slow[i].rank], slow[i], by_itself), result);
  }
  if (context.size < 3) result.notes.emplace_back("fewer than 3 devices have no cohort");
  return result;
}

class DeviceStage final : public Stage {
 public:
  std::string_view name() const override { return "device"; }

  std::vector<PlannedCase> plan(const AcceptPlanInput& input) const override {
    const std::string held = fmt::format(
        "all devices at the same time, {} times after a warm-up. Each is held against the profile "
        "and "
        "against the others: an outlier is further below their median than {:g} % of it and than "
        "their median absolute deviation, and its best sample is below what their worst are. Slow "
        "ones are measured once more by themselves, for their blame to say.",
        input.config.repeats,
        100.0 * input.profile.cohort_tolerance);
    const auto planned =
        [&](std::string name, FigureKey key, std::string does, double sample_s, double begin_s) {
          const double estimated_s = begin_s + (input.config.repeats + 1) * sample_s;
          // Suspects follow one another, on cores that other work may hold up.
          const double most_s = 20.0 * estimated_s * (1.0 + static_cast<double>(most_alone));
          return PlannedCase{.stage = "device",
                             .name = std::move(name),
                             .explanation = std::move(does) + held,
                             .estimated_s = estimated_s,
                             .deadline_s = input.config.timeout_s + most_s,
                             .skip = std::nullopt,
                             .measures = {std::move(key)}};
        };
    constexpr double read_sample_s = 0.05;
    return {planned("read",
                    read_key(),
                    "Reads memory beyond the caches, as weights are read, ",
                    read_sample_s,
                    0.2),
            planned(fmt::format("gemm {}", dtype_name(input.config.compute_dtype)),
                    gemm_key(input.config.compute_dtype),
                    "Multiplies matrices that keep the device busy, ",
                    shared_gemm_sample_s,
                    0.5)};
  }

  CaseResult run(const AcceptContext& context, const PlannedCase& planned) override {
    const bool shared = cores_are_shared(context);
    CaseResult result;
    if (planned.name == "read") {
      result = measure(context,
                       planned,
                       {.key = read_key(),
                        .unit = 1e9,
                        .does = "reads",
                        .sample = context.machine.read_bandwidth_sample});
    } else {
      GemmRate gemm(context, shared ? shared_gemm_sample_s : gemm_sample_s);
      result = measure(context,
                       planned,
                       {.key = gemm_key(context.device.compute_dtype()),
                        .unit = 1e12,
                        .does = "multiplies at",
                        .sample = [&gemm] { return gemm.sample(); }});
      result.notes.push_back(gemm.description());
    }
    if (shared) result.notes.emplace_back(shared_cores_note);
    return result;
  }
};

}  // namespace

std::unique_ptr<Stage> make_device_stage() { return std::make_unique<DeviceStage>(); }

}  // namespace testbed
