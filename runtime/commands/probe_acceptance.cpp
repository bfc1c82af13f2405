#include "runtime/commands/probe_acceptance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/accept/stage.hpp"
#include "runtime/config/acceptance_config.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/report/atomic_file.hpp"
#include "runtime/report/text.hpp"

namespace testbed {
namespace {

// Two decimals are enough for a fraction that is a judgement.
double rounded(double fraction) { return std::ceil(fraction * 100.0) / 100.0; }

// Another day differs from this one by more than repeats do: at least a quarter for a rate and half
// for a time, and twice what the repeats were apart.
double tolerance_of(const FigureKey& key, double middle, double least, double most) {
  constexpr double of_a_rate = 0.25;
  constexpr double of_a_time = 0.50;
  constexpr double most_of_a_rate = 0.90;  // beyond that, a gate would hold nothing back
  constexpr double most_of_a_time = 10.0;
  const bool is_rate = more_is_better(key);
  const double spread = 2.0 * (is_rate ? middle - least : most - middle) / middle;
  return is_rate ? std::clamp(rounded(spread), of_a_rate, most_of_a_rate)
                 : std::clamp(rounded(spread), of_a_time, most_of_a_time);
}

bool is_held(const AcceptanceProfile& profile, const FigureKey& key) {
  if (key.figure == "collective.us") return *key.bytes <= profile.latency_up_to_bytes;
  return true;
}

// All ranks alike: rank 0 says whether the case was carried out.
void agree_on_result(ControlChannel& control, const CaseResult& result) {
  std::optional<std::string> error;
  if (result.status == CaseStatus::error || result.corrupt) {
    error = fmt::format("{}/{}: {}", result.stage, result.name, result.reason);
  }
  control.agree(error);
}

void run_stage(const AcceptContext& context, Stage& stage, std::vector<Figure>& figures) {
  for (const PlannedCase& planned : stage.plan({context.config, context.profile, context.hosts})) {
    if (planned.skip) continue;
    const Watchdog::Watch watch(context.watchdog, planned.name, planned.deadline_s);
    if (context.rank == 0 && !context.config.quiet) {
      fmt::print(stderr, "testbed: {}/{}\n", planned.stage, printable(planned.name));
    }
    CaseResult result = stage.run(context, planned);
    agree_on_result(context.control, result);
    for (Figure& figure : result.figures) {
      if (is_held(context.profile, figure.key)) figures.push_back(std::move(figure));
    }
  }
}

}  // namespace

AcceptConfig acceptance_of(const ProbeConfig& config) {
  AcceptConfig accept;
  accept.device = config.device;
  accept.allow_shared_gpu = config.allow_shared_gpu;
  accept.threads = config.threads;
  accept.compute_dtype = config.compute_dtype;
  accept.stages = config.stages;
  if (config.model) accept.model = *config.model;
  accept.most_bytes = config.most_bytes;
  accept.timeout_s = config.timeout_s;
  accept.quiet = config.output.quiet;
  return accept;
}

AcceptanceProfile empty_profile(const std::string& device) {
  AcceptanceProfile profile{.name = "probed", .device = device, .tried_on_hardware = true};
  // Below, a call's start is most of its time; from there on it hardly shows. GPUs' links take more
  // to level off (configs/acceptance).
  profile.latency_up_to_bytes = int64_t{32} << 10;
  profile.bandwidth_from_bytes = device == "cpu" ? int64_t{4} << 20 : int64_t{16} << 20;
  return profile;
}

std::vector<Expectation> expectations_of(const std::vector<Figure>& figures,
                                         const std::string& source) {
  std::vector<Expectation> expectations;
  for (const Figure& figure : figures) {
    const bool is_known = std::any_of(expectations.begin(),
                                      expectations.end(),
                                      [&](const Expectation& e) { return e.key == figure.key; });
    if (is_known) continue;
    std::vector<double> medians;
    std::vector<double> samples;
    for (const Figure& other : figures) {
      if (other.key != figure.key) continue;
      medians.push_back(median(other.samples));
      samples.insert(samples.end(), other.samples.begin(), other.samples.end());
    }
    const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
    const double middle = median(medians);
    if (!(middle > 0.0)) continue;
    expectations.push_back({.key = figure.key,
                            .expected = middle,
                            .tolerance = tolerance_of(figure.key, middle, *least, *most),
                            .source = source});
  }
  return expectations;
}

void probe_acceptance(const AcceptContext& context, const ProbeConfig& config) {
  agree_on(context.control, [&] {
    if (context.rank == 0) check_writable(*config.acceptance);
  });
  std::vector<Figure> figures;
  constexpr std::pair<std::string_view, decltype(&make_device_stage)> measured[] = {
      {"device", make_device_stage},
      {"links", make_links_stage},
      {"collectives", make_collectives_stage},
      {"model", make_model_stage}};
  const std::vector<std::string>& chosen = context.config.stages;
  for (const auto& [name, make] : measured) {
    const bool is_chosen =
        chosen.empty() || std::find(chosen.begin(), chosen.end(), name) != chosen.end();
    if (is_chosen) run_stage(context, *make(), figures);
  }
  if (context.rank != 0) return;
  AcceptanceProfile profile = context.profile;
  profile.description = fmt::format("{} ranks on {} of host {} and its like, as measured there",
                                    context.size,
                                    context.device.description(),
                                    context.hosts.front());
  for (const std::string& label : context.machine.labels) profile.description += "; " + label;
  profile.expectations = expectations_of(
      figures,
      fmt::format(
          "testbed probe --acceptance, {} ranks on host {}", context.size, context.hosts.front()));
  write_file(*config.acceptance, acceptance_toml(profile));
}

}  // namespace testbed
