#include "launch/binding.hpp"

#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
struct BitmapDeleter {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyDeleter>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

Topology load_topology() {
  hwloc_topology_t topology = nullptr;
  CHECK(hwloc_topology_init(&topology) == 0);
  Topology owned(topology);
  CHECK(hwloc_topology_load(topology) == 0);
  return owned;
}

std::string to_text(const Bitmap& cores) {
  char* text = nullptr;
  CHECK(hwloc_bitmap_list_asprintf(&text, cores.get()) >= 0);
  std::string copy(text);
  std::free(text);  // NOLINT(cppcoreguidelines-no-malloc): hwloc allocates with malloc
  return copy;
}

// The n cores from the first-th on, in the order of their numbers.
Bitmap slice(const Bitmap& cores, int first, int n) {
  Bitmap result(hwloc_bitmap_alloc());
  int index = 0;
  for (int core = hwloc_bitmap_first(cores.get()); core >= 0;
       core = hwloc_bitmap_next(cores.get(), core), ++index) {
    if (index >= first && index < first + n) {
      hwloc_bitmap_set(result.get(), static_cast<unsigned>(core));
    }
  }
  return result;
}

}  // namespace

Binding bind_rank(int local_rank, int n_local_ranks) {
  const Topology topology = load_topology();
  const Bitmap allowed(hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology.get())));
  Bitmap mine(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(topology.get(), mine.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(mine.get(), allowed.get());
  }
  const int n_mine = std::max(1, hwloc_bitmap_weight(mine.get()));
  const int n_host = std::max(1, hwloc_bitmap_weight(allowed.get()));
  if (n_local_ranks == 1) return {n_mine, to_text(mine)};
  if (hwloc_bitmap_isequal(mine.get(), allowed.get()) == 0) return {n_mine, to_text(mine)};
  if (n_local_ranks > n_host) return {1, to_text(mine) + " (unbound)"};
  const int each = n_host / n_local_ranks;
  const Bitmap share = slice(allowed, local_rank * each, each);
  if (hwloc_set_cpubind(topology.get(), share.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    return {each, to_text(mine) + " (unbound)"};
  }
  return {each, to_text(share)};
}

}  // namespace testbed
