#include "runtime/commands/accept.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"
#include "parallel/comm/injection.hpp"
#include "runtime/accept/profile_gaps.hpp"
#include "runtime/commands/accept_attempts.hpp"
#include "runtime/commands/accept_log.hpp"
#include "runtime/report/acceptance_reports.hpp"

namespace testbed {
namespace {

using Stages = std::vector<std::unique_ptr<Stage>>;

std::string name_of(const PlannedCase& planned) {
  return fmt::format("{}/{}", planned.stage, planned.name);
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_asked_for(const AcceptConfig& config, const PlannedCase& planned) {
  if (!config.stages.empty() && !contains(config.stages, planned.stage)) return false;
  return !config.only || name_of(planned).find(*config.only) != std::string::npos;
}

// The same on every rank.
Asked plan_cases(const Stages& stages, const AcceptPlanInput& input) {
  Asked asked{.cases = {},
              .chosen = !input.config.stages.empty() || input.config.only.has_value(),
              .quick = input.config.quick};
  for (const std::unique_ptr<Stage>& stage : stages) {
    for (PlannedCase& planned : stage->plan(input)) {
      CHECK(planned.stage == stage->name());
      if (is_asked_for(input.config, planned)) asked.cases.push_back(std::move(planned));
    }
  }
  return asked;
}

// The one case that is called that, or else the one whose name contains it.
const PlannedCase& find_case(const std::vector<PlannedCase>& cases, const std::string& text) {
  std::vector<std::string> names;
  const PlannedCase* found = nullptr;
  for (const PlannedCase& planned : cases) {
    const std::string name = name_of(planned);
    if (name == text) return planned;
    if (name.find(text) == std::string::npos) continue;
    found = &planned;
    names.push_back(name);
  }
  if (names.size() == 1) return *found;
  throw ConfigError(names.empty()
                        ? fmt::format("--explain {}: no such case; --list lists them", text)
                        : fmt::format("--explain {}: which of {}?", text, fmt::join(names, ", ")));
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

// Every text once, in order.
std::vector<std::string> distinct(const std::vector<std::string>& texts) {
  std::vector<std::string> found;
  for (const std::string& text : texts) {
    if (!contains(found, text)) found.push_back(text);
  }
  return found;
}

std::vector<std::string> labels_of(const AcceptContext& context, const Asked& asked) {
  std::vector<std::string> labels = context.machine.labels;
  if (!context.profile.tried_on_hardware) {
    labels.push_back(fmt::format("the profile {} was never tried on the hardware that it is for",
                                 context.profile.name));
  }
  const std::vector<std::string> gaps = profile_gaps(context.profile, asked.cases);
  if (!gaps.empty()) {
    labels.push_back(fmt::format("the profile {} expects nothing of, and no gate judges: {}",
                                 context.profile.name,
                                 fmt::join(gaps, ", ")));
  }
  if (asked.chosen) {
    labels.emplace_back("only the cases that --stage and --case chose: not the whole acceptance");
  }
  if (context.config.quick) labels.emplace_back("--quick: fewer sizes and repeats");
  const MachineInfo& machine = context.machine;
  if (machine.ranks_on_host * machine.threads > machine.cores_on_host) {
    labels.push_back(
        fmt::format("oversubscribed: {} ranks x {} threads on {} cores of rank 0's host",
                    machine.ranks_on_host,
                    machine.threads,
                    machine.cores_on_host));
  }
  for (const Injection& injection : context.config.inject) {
    labels.push_back(injection_label(injection));
  }
  return labels;
}

// All that is known before the first case; all ranks call it together.
Acceptance describe_job(const AcceptContext& context, const Asked& asked) {
  const std::vector<std::string> bindings = gather_text(context.control, context.machine.binding);
  std::vector<std::string> devices = gather_text(context.control, context.device.description());
  Acceptance acceptance{.profile = context.profile,
                        .device = std::string(context.device.kind()),
                        .world_size = context.size,
                        .hosts = context.hosts,
                        .devices = devices,
                        .labels = labels_of(context, asked),
                        .began = utc_now()};
  FingerprintRecord& print = acceptance.fingerprint;
  print.hosts = distinct(context.hosts);
  print.devices = std::move(devices);
  print.binding = bindings;
  print.libraries = context.machine.libraries;
  print.environment = context.machine.environment;
  if (auto driver = print.environment.extract("driver")) print.driver = driver.mapped();
  print.version = TESTBED_VERSION;
  return acceptance;
}

// Rank 0's work of its own on disk and standard output and error, any of which may hang. The others
// notice it a second later.
constexpr double to_write_s = 3.0;  // beyond the deadline of a collective
constexpr double to_keep_s = 60.0;  // files that are to stay

void watched(const AcceptContext& context,
             const std::string& what,
             double deadline_s,
             const std::function<void()>& work) {
  const Watchdog::Watch watch(context.watchdog, what, deadline_s);
  work();
}

// Rank 0 has a log; a folder or baseline that cannot be used is every rank's mistake.
std::unique_ptr<AcceptanceLog> open_log(const AcceptContext& context, const Asked& asked) {
  Acceptance acceptance = describe_job(context, asked);
  std::unique_ptr<AcceptanceLog> log;
  agree_on(context.control, [&] {
    if (context.rank != 0) return;
    watched(
        context, "writing to " + context.config.folder, context.config.timeout_s + to_write_s, [&] {
          log = std::make_unique<AcceptanceLog>(context, std::move(acceptance), asked);
        });
  });
  return log;
}

void begin(const AcceptContext& context, AcceptanceLog& log, const PlannedCase& planned) {
  watched(context,
          fmt::format("writing to {} before {}", context.config.folder, name_of(planned)),
          context.config.timeout_s + to_write_s,
          [&] { log.begin(planned); });
}

void add(const AcceptContext& context, AcceptanceLog& log, CaseResult result) {
  watched(context,
          "telling the result of a case on standard error",
          context.config.timeout_s + to_write_s,
          [&] { log.add(std::move(result)); });
}

Verdict finish(const AcceptContext& context, AcceptanceLog& log) {
  Verdict verdict = Verdict::incomplete;
  watched(context,
          "writing the verdict to " + context.config.folder,
          context.config.timeout_s + to_keep_s,
          [&] { verdict = log.finish().verdict; });
  watched(context, "the summary on standard output", context.config.timeout_s + to_write_s, [&] {
    log.show();
  });
  return verdict;
}

Stage& stage_of(const Stages& stages, const PlannedCase& planned) {
  const auto found = std::find_if(stages.begin(), stages.end(), [&](const auto& stage) {
    return stage->name() == planned.stage;
  });
  return **found;
}

CaseResult skipped(const PlannedCase& planned) {
  return {.stage = planned.stage,
          .name = planned.name,
          .status = CaseStatus::skipped,
          .reason = *planned.skip};
}

constexpr const char* mute_states[] = {"stopped", "dead", "gone"};  // process_state

// Rank 0 of this host, stopped or gone, has left files that name nobody.
void speak_for_rank_0(const AcceptContext& context, const std::string& said) {
  const std::string where = context.whereabouts({0});
  const bool is_mute = std::any_of(std::begin(mute_states), std::end(mute_states), [&](auto state) {
    return where.find(fmt::format("rank 0 ({})", state)) != std::string::npos;
  });
  if (!is_mute) return;
  const std::string& host = context.hosts[static_cast<size_t>(context.rank)];
  write_for_rank_0(context.config, fmt::format("rank {} ({}): {}", context.rank, host, said));
}

int run_cases(const AcceptContext& context,
              const Stages& stages,
              const Asked& asked,
              AcceptanceLog* log) {
  for (const PlannedCase& planned : asked.cases) {
    if (planned.skip) {
      if (log) add(context, *log, skipped(planned));
      continue;
    }
    if (log) begin(context, *log, planned);
    go_on_together(context, to_write_s + 1.0);  // a rank 0 that is stopped is noticed, too
    CaseOutcome outcome = run_case(context, stage_of(stages, planned), planned);
    if (!log) continue;
    const std::string reason = outcome.result.reason;
    add(context, *log, std::move(outcome.result));
    if (outcome.ended) {
      finish(context, *log);
      throw CommError(fmt::format("the acceptance ends at {}: {}", name_of(planned), reason));
    }
  }
  Bytes verdict;
  if (log) verdict.push_back(static_cast<std::byte>(finish(context, *log)));
  go_on_together(context, to_keep_s + 1.0);
  return static_cast<int>(context.control.broadcast(std::move(verdict), 0).at(0));
}

}  // namespace

Stages make_stages() {
  Stages stages;
  stages.push_back(make_preflight_stage());
  stages.push_back(make_device_stage());
  stages.push_back(make_links_stage());
  stages.push_back(make_collectives_stage());
  stages.push_back(make_model_stage());
  stages.push_back(make_corruption_stage());
  stages.push_back(make_soak_stage());
  return stages;
}

std::optional<AcceptPlanText> describe_acceptance(const AcceptPlanInput& input) {
  if (!input.config.list && !input.config.explain) return std::nullopt;
  const Asked asked = plan_cases(make_stages(), input);
  if (input.config.explain) {
    return AcceptPlanText{
        to_explanation(find_case(asked.cases, *input.config.explain), input.profile)};
  }
  const Verdict verdict = asked.cases.empty() ? Verdict::incomplete : Verdict::accept;
  return AcceptPlanText{to_list(asked.cases), static_cast<int>(verdict)};
}

int with_exit_code_of_verdict(const std::function<int()>& work) {
  try {
    return work();
  } catch (const Error& e) {
    if (e.code() != ExitCode::internal_error) throw;
    throw Error(ExitCode::runtime_failure, e.what());
  } catch (const std::exception& e) {
    throw Error(ExitCode::runtime_failure, fmt::format("internal error: {}", e.what()));
  }
}

int run_acceptance(const AcceptContext& context) {
  const Stages stages = make_stages();
  const Asked asked = plan_cases(stages, {context.config, context.profile, context.hosts});
  const std::unique_ptr<AcceptanceLog> log = open_log(context, asked);
  try {
    return run_cases(context, stages, asked, log.get());
  } catch (const CommError& e) {
    if (!log) speak_for_rank_0(context, e.what());
    throw;
  }
}

}  // namespace testbed
