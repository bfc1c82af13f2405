#include "runtime/serving/memory_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

// The first number in a file; nullopt if there is none ("max").
std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

int64_t mem_available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<int64_t>::max();
}

int64_t total_bytes(const MemoryRecord& m) {
  return m.weights_bytes + m.kv_pool_bytes + m.workspace_bytes;
}

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

}  // namespace

int64_t host_memory_bytes() {
  int64_t available = mem_available_bytes();
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, std::max<int64_t>(0, *limit - *used));
  return available;
}

int64_t workspace_bytes(const WorkspaceShape& s) {
  // residual, normed, partial; q, k, v, attention output; gate | up and their product.
  const int64_t per_token =
      (3 * s.d_model + 2 * s.heads_local + 3 * s.d_ff_local) * s.element_bytes;
  const int64_t per_logits_row = s.d_model * s.element_bytes + 3 * s.vocab_size * 4;
  return s.n_tokens * per_token + s.n_logits_rows * per_logits_row;
}

void MemoryUse::add(const MemoryRecord& plan) {
  capacity_bytes =
      n_ranks == 0 ? plan.capacity_bytes : std::min(capacity_bytes, plan.capacity_bytes);
  if (n_ranks == 0 || total_bytes(plan) > total_bytes(largest)) largest = plan;
  needed_bytes += total_bytes(plan);
  ++n_ranks;
}

std::optional<std::string> MemoryUse::why_too_much() const {
  if (needed_bytes <= capacity_bytes) return std::nullopt;
  return fmt::format(
      "does not fit: {} rank(s) of {} need {:.1f} GiB, {:.1f} GiB are free; the largest is rank "
      "{}: weights {:.1f}, KV cache {:.1f}, workspace {:.1f} GiB",
      n_ranks,
      place,
      gib(needed_bytes),
      gib(capacity_bytes),
      largest.rank,
      gib(largest.weights_bytes),
      gib(largest.kv_pool_bytes),
      gib(largest.workspace_bytes));
}

std::optional<std::string> why_hosts_lack_memory(ControlChannel& control,
                                                 const std::string& host,
                                                 const std::vector<MemoryRecord>& plans) {
  ByteWriter out;
  out.put(host);
  out.put(plans);
  std::map<std::string, MemoryUse> hosts;
  for (const Bytes& bytes : control.all_gather(out.take())) {
    ByteReader in(bytes);
    std::string name;
    std::vector<MemoryRecord> of_process;
    in.get(name);
    in.get(of_process);
    MemoryUse& use = hosts[name];
    use.place = "host " + name;
    for (const MemoryRecord& plan : of_process) use.add(plan);
  }
  for (const auto& [name, use] : hosts) {
    if (auto reason = use.why_too_much()) return reason;
  }
  return std::nullopt;
}

}  // namespace testbed
