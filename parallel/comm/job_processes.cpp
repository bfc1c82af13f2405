#include "parallel/comm/job_processes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

namespace testbed {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Variables that name a job and a process's rank in it, by launcher.
struct Numbering {
  const char* job;
  const char* rank;
};
constexpr Numbering numberings[] = {{"PMIX_NAMESPACE", "PMIX_RANK"},
                                    {"OMPI_MCA_ess_base_jobid", "OMPI_COMM_WORLD_RANK"},
                                    {"SLURM_JOB_ID", "SLURM_PROCID"}};

// Of an environment as /proc has it: entries that end in a null byte. "" if it is not there.
std::string value_in(const std::string& environment, const std::string& name) {
  const std::string start = name + "=";
  size_t at = 0;
  while (at < environment.size()) {
    const size_t end = std::min(environment.find('\0', at), environment.size());
    if (environment.compare(at, start.size(), start) == 0) {
      return environment.substr(at + start.size(), end - at - start.size());
    }
    at = end + 1;
  }
  return "";
}

std::string value_of(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

const Numbering* find_numbering() {
  const auto* const found =
      std::find_if(std::begin(numberings), std::end(numberings), [](const Numbering& by) {
        return !value_of(by.job).empty() && !value_of(by.rank).empty();
      });
  return found == std::end(numberings) ? nullptr : found;
}

}  // namespace

std::string name_by_launcher() {
  const Numbering* const numbering = find_numbering();
  return numbering == nullptr ? "" : "rank " + value_of(numbering->rank);
}

std::string process_state(pid_t pid) {
  const std::string stat = contents(fmt::format("/proc/{}/stat", pid));
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return "gone";
  switch (stat[name_end + 2]) {
    case 'T':
    case 't':
      return "stopped";
    case 'Z':
    case 'X':
      return "dead";
    default:
      return "";
  }
}

std::string idle_processes_of_job() {
  const Numbering* const numbering = find_numbering();
  if (numbering == nullptr) return "";
  const std::string job = value_of(numbering->job);
  std::map<int, std::string> idle;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    const int pid = std::atoi(name.c_str());
    if (pid <= 0) continue;
    const std::string environment = contents("/proc/" + name + "/environ");
    if (value_in(environment, numbering->job) != job) continue;
    const std::string rank = value_in(environment, numbering->rank);
    const std::string state = process_state(pid);
    if (rank.empty() || state.empty() || state == "gone") continue;
    idle[std::atoi(rank.c_str())] = fmt::format("rank {} (pid {}) is {}", rank, pid, state);
  }
  std::string text;
  for (const auto& [rank, what] : idle) text += text.empty() ? what : "; " + what;
  return text;
}

}  // namespace testbed
