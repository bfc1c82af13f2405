// Faults by the number of a call, and the counts that a test enumerates them from.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <vector>

#include "tests/cuda_emulation/emulation.hpp"
#include "tests/cuda_emulation/places.hpp"

namespace emulation {
namespace {

struct Fault {
  std::string name;
  int64_t at = 0;                 // 1: the next call
  std::optional<uint32_t> place;  // of those from there
  std::optional<int> code;
  std::optional<int> rank;
};

[[noreturn]] void refuse(const std::string& text) {
  std::fprintf(stderr,
               "emulation: TESTBED_EMULATION_FAIL=%s: want NAME:N[/PLACE][:CODE][@RANK][,...]\n",
               text.c_str());
  std::abort();
}

int number(const std::string& text, const std::string& whole) {
  size_t end = 0;
  try {
    const int value = std::stoi(text, &end);
    if (end == text.size()) return value;
  } catch (const std::exception&) {
    refuse(whole);
  }
  refuse(whole);
}

// NAME:N[/PLACE][:CODE][@RANK]
Fault parse_one(std::string text, const std::string& whole) {
  Fault fault;
  if (const size_t at = text.find('@'); at != std::string::npos) {
    fault.rank = number(text.substr(at + 1), whole);
    text.resize(at);
  }
  const size_t first = text.find(':');
  if (first == std::string::npos || first == 0) refuse(whole);
  fault.name = text.substr(0, first);
  const size_t second = text.find(':', first + 1);
  std::string at = text.substr(first + 1, second - first - 1);
  if (const size_t slash = at.find('/'); slash != std::string::npos) {
    fault.place = static_cast<uint32_t>(std::strtoul(at.c_str() + slash + 1, nullptr, 16));
    at.resize(slash);
  }
  fault.at = number(at, whole);
  if (second != std::string::npos) fault.code = number(text.substr(second + 1), whole);
  return fault;
}

std::vector<Fault> parse(const std::string& text) {
  std::vector<Fault> faults;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    faults.push_back(parse_one(text.substr(begin, end - begin), text));
    begin = end + 1;
  }
  return faults;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string rank_of_job() {
  const std::string rank = variable("OMPI_COMM_WORLD_RANK");
  return rank.empty() ? "0" : rank;
}

struct Injection {
  std::mutex mutex;
  std::map<std::string, int64_t> counts;
  std::map<std::string, std::map<uint32_t, int64_t>> places;  // by name, if they are to be written
  std::vector<Fault> faults = parse(variable("TESTBED_EMULATION_FAIL"));
  bool tells = true;  // faults of the environment's
  int rank = std::atoi(rank_of_job().c_str());
  bool notes_places = !variable("TESTBED_EMULATION_COUNTS").empty();

  Injection() {
    if (notes_places) std::atexit(&write_counts);
  }
  bool asks_for_places() const {
    return notes_places || std::any_of(faults.begin(), faults.end(), [](const Fault& fault) {
             return fault.place.has_value();
           });
  }
  static void write_counts();
};

Injection& injection() {
  static Injection& all = *new Injection;
  return all;
}

void Injection::write_counts() {
  std::ofstream out(variable("TESTBED_EMULATION_COUNTS") + "." + rank_of_job());
  for (const auto& [name, n] : call_counts()) {
    out << name << ' ' << n << '\n';
    for (const auto& [place, of_place] : injection().places[name]) {
      out << name << '/' << std::hex << place << std::dec << ' ' << of_place << '\n';
    }
  }
  const Live left = live();
  out << "live.device_allocations " << left.device_allocations << '\n'
      << "live.pinned_allocations " << left.pinned_allocations << '\n'
      << "live.opened_ipc_handles " << left.opened_ipc_handles << '\n'
      << "live.streams " << left.streams << '\n'
      << "live.events " << left.events << '\n'
      << "live.graphs " << left.graphs << '\n'
      << "live.graph_execs " << left.graph_execs << '\n';
}

}  // namespace

std::optional<int> inject(const char* name, int default_code) {
  Injection& all = injection();
  const std::lock_guard lock(all.mutex);
  ++all.counts[name];
  // Asked once: this function's own return address is part of the way.
  const uint32_t place = all.asks_for_places() ? calling_place() : 0;
  if (all.notes_places) ++all.places[name][place];
  for (Fault& fault : all.faults) {
    if (fault.name != name || (fault.rank && *fault.rank != all.rank)) continue;
    if (fault.place && *fault.place != place) continue;
    if (--fault.at != 0) continue;
    const int code = fault.code.value_or(default_code);
    if (all.tells) std::fprintf(stderr, "emulation: %s fails with code %d\n", name, code);
    return code;
  }
  return std::nullopt;
}

std::map<std::string, int64_t> call_counts() {
  Injection& all = injection();
  const std::lock_guard lock(all.mutex);
  return all.counts;
}

void set_faults(const std::string& faults) {
  Injection& all = injection();
  const std::lock_guard lock(all.mutex);
  all.faults = parse(faults);
  all.tells = false;
}

}  // namespace emulation
