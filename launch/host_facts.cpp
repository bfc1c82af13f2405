#include "launch/host_facts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"
#include "runtime/serving/memory_plan.hpp"
#include "runtime/weights/mapped_file.hpp"

namespace testbed {
namespace {

constexpr double giga = 1e9;

// The value of the first line "key : value".
std::string find_line(const std::filesystem::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(" \t:", key.size());
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "";
}

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

void put(Facts& facts, const std::string& name, const std::string& value) {
  if (!value.empty()) facts[name] = value;
}

void put_gb(Facts& facts, const std::string& name, double n_bytes) {
  facts[name] = fmt::format("{:.3f}", n_bytes / giga);
}

// The program as it lies on this host's disk: equal versions built from unequal sources differ.
std::string build_of_program() {
  try {
    const MappedFile program("/proc/self/exe");
    return fmt::format("{:016x}", hash_bytes(program.bytes()));
  } catch (const Error&) {
    return "";
  }
}

// The folders on the way to a device, resolved: bridges and switches it hangs behind.
std::vector<std::string> path_of(const std::filesystem::path& device) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(device, error);
  std::vector<std::string> parts;
  if (error) return parts;
  for (const std::filesystem::path& part : real) parts.push_back(part.string());
  return parts;
}

size_t n_shared(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const auto [differ, ignored] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(differ - a.begin());
}

}  // namespace

Facts environment_facts(const char* const* environment) {
  constexpr std::string_view heeded[] = {"NCCL_", "TESTBED_", "UCX_", "CUDA_", "OMP_"};
  static const std::set<std::string_view> of_a_rank{
      "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG_FILE", "TESTBED_RANK"};
  Facts facts;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    const bool matters = std::any_of(std::begin(heeded), std::end(heeded), [&](auto prefix) {
      return name.starts_with(prefix);
    });
    if (!matters || of_a_rank.contains(name)) continue;
    facts[fmt::format("env.{}", name)] = std::string(entry.substr(equals + 1));
  }
  return facts;
}

Facts processor_facts(const std::filesystem::path& cpuinfo, const std::filesystem::path& governor) {
  Facts facts;
  put(facts, "processor", find_line(cpuinfo, "model name"));
  put(facts, "microcode", find_line(cpuinfo, "microcode"));
  put(facts, "governor", first_line(governor));
  return facts;
}

std::string nearest_nics(const std::string& pci_bus_id, const std::filesystem::path& sys) {
  const std::vector<std::string> device = path_of(sys / "bus/pci/devices" / pci_bus_id);
  if (device.empty()) return "";
  size_t nearest = 0;
  std::set<std::string> names;
  // Adapters of RDMA if there are any, else those of Ethernet that are devices at all.
  for (const char* kind : {"class/infiniband", "class/net"}) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(sys / kind, error)) {
      const std::vector<std::string> nic = path_of(entry.path() / "device");
      if (nic.empty()) continue;
      const size_t shared = n_shared(device, nic);
      if (shared < nearest) continue;
      if (shared > nearest) names.clear();
      nearest = shared;
      names.insert(entry.path().filename().string());
    }
    if (!names.empty()) break;
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

Facts host_facts(const MpiWorld& world) {
  Facts facts = environment_facts(environ);
  facts.merge(processor_facts());
  for (const auto& [name, value] : world.settings()) facts["env." + name] = value;
  facts["testbed"] = TESTBED_VERSION;
  put(facts, "testbed.build", build_of_program());
  facts["mpi"] = world.library();
  utsname system{};
  if (uname(&system) == 0) facts["kernel"] = system.release;
  facts["cores"] = fmt::format("{}", world.n_usable_cores());
  facts["ranks_on_host"] = fmt::format("{}", world.n_local_ranks());
  put_gb(facts, "memory_gb", static_cast<double>(host_memory_bytes()));
  std::istringstream available(find_line("/proc/meminfo", "MemAvailable"));
  if (double kib = 0; available >> kib) put_gb(facts, "memory_available_gb", kib * 1024.0);
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    put_gb(facts,
           "dev_shm_free_gb",
           static_cast<double>(shm.f_bavail) * static_cast<double>(shm.f_frsize));
  }
  return facts;
}

}  // namespace testbed
