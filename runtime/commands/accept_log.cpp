#include "runtime/commands/accept_log.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/base/clock.hpp"
#include "kernels/base/errors.hpp"
#include "runtime/accept/drift.hpp"
#include "runtime/report/acceptance_reports.hpp"
#include "runtime/report/atomic_file.hpp"
#include "runtime/report/text.hpp"

namespace testbed {
namespace {

using LastWords = Watchdog::LastWords;

// Of the case that runs, in the files; as it is in texts of every kind.
constexpr std::string_view not_ended = "it had not ended when this was written";

std::string path_in(const AcceptConfig& config, const char* name) {
  return (std::filesystem::path(config.folder) / name).string();
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw ConfigError(fmt::format("--output {}: {}", folder, error.message()));
}

struct Report {
  const char* name;
  std::string (*text)(const Acceptance&);
  std::string (*inside)(std::string_view);
};
constexpr Report reports[] = {{"verdict.json", to_json, inside_json},
                              {"junit.xml", to_junit, inside_junit},
                              {"summary.txt", to_table, inside_table},
                              {"metrics.prom", to_prometheus, inside_table}};

// The four files; what a watchdog says, if anything, takes the place of its placeholder.
std::vector<LastWords> reports_of(const AcceptConfig& config, const Acceptance& acceptance) {
  std::vector<LastWords> files;
  files.reserve(std::size(reports));
  for (const Report& report : reports) {
    files.push_back({path_in(config, report.name), report.text(acceptance), report.inside});
  }
  return files;
}

void write(const std::vector<LastWords>& files, std::string_view said, FileSync sync) {
  for (const LastWords& file : files) write_file(file.path, file.with(said), sync);
}

// What could be written once is no mistake of the user's when it no longer can (the disk is full).
void write_again(const std::vector<LastWords>& files, std::string_view said, FileSync sync) {
  try {
    write(files, said, sync);
  } catch (const Error& e) {
    throw CommError(e.what());
  }
}

double seconds_since(int64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns) * 1e-9; }

}  // namespace

AcceptanceLog::AcceptanceLog(const AcceptContext& context, Acceptance acceptance, Asked asked)
    : context_(context),
      acceptance_(std::move(acceptance)),
      asked_(std::move(asked)),
      begin_ns_(now_ns()) {
  if (context.config.baseline) read_baseline(*context.config.baseline);
  make_folder(context.config.folder);
  conclude(acceptance_, asked_);
  write(reports_of(context.config, acceptance_), "", FileSync::later);
}

void AcceptanceLog::read_baseline(const std::string& path) {
  baseline_ = read_acceptance(path);
  if (const auto refusal = refusal_of_baseline(*baseline_, acceptance_)) {
    throw ConfigError(fmt::format("--baseline {}: {}", path, *refusal));
  }
  for (std::string& label : baseline_labels(*baseline_, acceptance_)) {
    acceptance_.labels.push_back(std::move(label));
  }
}

void AcceptanceLog::begin(const PlannedCase& planned) {
  Acceptance so_far = acceptance_;
  so_far.seconds = seconds_since(begin_ns_);
  CaseResult& running = so_far.cases.emplace_back(
      CaseResult{.stage = planned.stage, .name = planned.name, .status = CaseStatus::error});
  running.reason = Watchdog::placeholder;
  conclude(so_far, asked_);
  const std::vector<LastWords> files = reports_of(context_.config, so_far);
  // First: what has ended by now is not to be told as what hangs, should writing hang.
  context_.watchdog.set_last_words(files);
  write_again(files, not_ended, FileSync::later);
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
  context_.watchdog.set_last_words({});
  write_again(reports_of(context_.config, acceptance_), "", FileSync::at_once);
  return acceptance_;
}

void AcceptanceLog::show() const {
  if (context_.config.quiet) return;
  fmt::print("{}", to_table(acceptance_));
  std::fflush(stdout);
}

void write_for_rank_0(const AcceptConfig& config, const std::string& said) {
  for (const Report& report : reports) {
    LastWords file{path_in(config, report.name), "", report.inside};
    std::ifstream in(file.path);
    file.text.assign(std::istreambuf_iterator<char>(in), {});
    const size_t first = file.text.find(not_ended);
    if (!in || first == std::string::npos) continue;
    for (size_t at = first; at != std::string::npos; at = file.text.find(not_ended, at)) {
      file.text.replace(at, not_ended.size(), Watchdog::placeholder);
    }
    write_again({file}, said, FileSync::at_once);
  }
}

}  // namespace testbed
