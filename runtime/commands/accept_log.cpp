#include "runtime/commands/accept_log.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "kernels/base/clock.hpp"
#include "kernels/base/errors.hpp"
#include "runtime/accept/drift.hpp"
#include "runtime/report/acceptance_reports.hpp"
#include "runtime/report/atomic_file.hpp"
#include "runtime/report/text.hpp"

namespace testbed {
namespace {

std::string path_in(const AcceptConfig& config, const char* name) {
  return (std::filesystem::path(config.folder) / name).string();
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw ConfigError(fmt::format("--output {}: {}", folder, error.message()));
}

double seconds_since(int64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns) * 1e-9; }

}  // namespace

AcceptanceLog::AcceptanceLog(const AcceptContext& context, Acceptance acceptance, Asked asked)
    : context_(context),
      acceptance_(std::move(acceptance)),
      asked_(std::move(asked)),
      begin_ns_(now_ns()) {
  if (context.config.baseline) baseline_ = read_acceptance(*context.config.baseline);
  make_folder(context.config.folder);
  conclude(acceptance_, asked_);
  write(acceptance_);
}

void AcceptanceLog::begin(const PlannedCase& planned) {
  Acceptance so_far = acceptance_;
  so_far.seconds = seconds_since(begin_ns_);
  CaseResult& running = so_far.cases.emplace_back(
      CaseResult{.stage = planned.stage, .name = planned.name, .status = CaseStatus::error});
  // First: what has ended by now is not to be told as what hangs, should writing hang.
  running.reason = Watchdog::placeholder;
  conclude(so_far, asked_);
  context_.watchdog.set_last_words(path_in(context_.config, "verdict.json"), to_json(so_far));
  running.reason = "it had not ended when this was written";
  conclude(so_far, asked_);
  write_again(so_far);
}

void AcceptanceLog::add(CaseResult result) {
  if (!context_.config.quiet) {
    fmt::print(stderr,
               "testbed: {}/{}: {} ({:.1f} s){}{}\n",
               printable(result.stage),
               printable(result.name),
               case_status_name(result.status),
               result.seconds,
               result.reason.empty() ? "" : ": ",
               printable(result.reason));
  }
  acceptance_.cases.push_back(std::move(result));
}

const Acceptance& AcceptanceLog::finish() {
  acceptance_.finished = true;
  acceptance_.seconds = seconds_since(begin_ns_);
  if (baseline_) acceptance_.drift = drift_since(*baseline_, acceptance_);
  conclude(acceptance_, asked_);
  context_.watchdog.set_last_words("", "");
  write_again(acceptance_);
  return acceptance_;
}

void AcceptanceLog::show() const {
  if (context_.config.quiet) return;
  fmt::print("{}", to_table(acceptance_));
  std::fflush(stdout);
}

// What could be written once is no mistake of the user's when it no longer can (the disk is full).
void AcceptanceLog::write_again(const Acceptance& acceptance) const {
  try {
    write(acceptance);
  } catch (const Error& e) {
    throw CommError(e.what());
  }
}

void AcceptanceLog::write(const Acceptance& acceptance) const {
  const FileSync sync = acceptance.finished ? FileSync::at_once : FileSync::later;
  const auto put = [&](const char* name, const std::string& text) {
    write_file(path_in(context_.config, name), text, sync);
  };
  put("verdict.json", to_json(acceptance));
  put("junit.xml", to_junit(acceptance));
  put("summary.txt", to_table(acceptance));
  put("metrics.prom", to_prometheus(acceptance));
}

}  // namespace testbed
