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

Topology load_topology(bool with_devices = false, const std::string& file = {}) {
  hwloc_topology_t topology = nullptr;
  CHECK(hwloc_topology_init(&topology) == 0);
  Topology owned(topology);
  if (with_devices) {  // which takes its time
    CHECK(hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL) == 0);
  }
  if (!file.empty()) CHECK(hwloc_topology_set_xml(topology, file.c_str()) == 0);
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

// What this host lets us use, and what of it the launcher left to this process.
struct Cores {
  Bitmap allowed;
  Bitmap mine;
  bool is_bound() const { return hwloc_bitmap_isequal(mine.get(), allowed.get()) == 0; }
};
Cores cores_of(const Topology& topology) {
  Cores cores{Bitmap(hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology.get()))),
              Bitmap(hwloc_bitmap_alloc())};
  if (hwloc_get_cpubind(topology.get(), cores.mine.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(cores.mine.get(), cores.allowed.get());
  }
  return cores;
}

int count(const Bitmap& cores) { return std::max(1, hwloc_bitmap_weight(cores.get())); }

Binding bind_to(const Topology& topology, const Bitmap& cores, const Bitmap& before) {
  if (hwloc_set_cpubind(topology.get(), cores.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    return {count(cores), to_text(before) + " (unbound)"};
  }
  return {count(cores), to_text(cores)};
}

// nullptr: not known.
Bitmap near_pci(const Topology& topology, const std::string& pci_bus_id) {
  const hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology.get(), pci_bus_id.c_str());
  if (device == nullptr) return nullptr;
  const hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology.get(), device);
  if (place == nullptr || place->cpuset == nullptr) return nullptr;
  return Bitmap(hwloc_bitmap_dup(place->cpuset));
}

// The part of the usable cores near my GPU that is mine among the ranks near it; nullptr: there are
// more ranks than cores.
Bitmap share_near(const Topology& topology,
                  const Bitmap& usable,
                  const std::vector<std::string>& pci_bus_ids,
                  int local_rank) {
  int n_sharers = 0;
  int my_place = 0;
  const Bitmap mine = near_pci(topology, pci_bus_ids[static_cast<size_t>(local_rank)]);
  for (size_t rank = 0; rank < pci_bus_ids.size(); ++rank) {
    const Bitmap theirs = near_pci(topology, pci_bus_ids[rank]);
    if (theirs == nullptr || hwloc_bitmap_isequal(theirs.get(), mine.get()) == 0) continue;
    if (rank < static_cast<size_t>(local_rank)) ++my_place;
    ++n_sharers;
  }
  const int each = count(usable) / std::max(1, n_sharers);
  return each == 0 ? nullptr : slice(usable, my_place * each, each);
}

}  // namespace

Binding bind_rank(int local_rank, int n_local_ranks) {
  const Topology topology = load_topology();
  const Cores cores = cores_of(topology);
  const int n_mine = count(cores.mine);
  const int n_host = count(cores.allowed);
  if (n_local_ranks == 1 || cores.is_bound()) return {n_mine, to_text(cores.mine)};
  if (n_local_ranks > n_host) return {1, to_text(cores.mine) + " (unbound)"};
  const int each = n_host / n_local_ranks;
  return bind_to(topology, slice(cores.allowed, local_rank * each, each), cores.mine);
}

Binding bind_to_pci(const std::vector<std::string>& pci_bus_ids, int local_rank) {
  const Topology topology = load_topology(/*with_devices=*/true);
  const Cores cores = cores_of(topology);
  const std::string& gpu = pci_bus_ids[static_cast<size_t>(local_rank)];
  const auto as_without = [&](const std::string& why) {
    Binding binding = bind_rank(local_rank, static_cast<int>(pci_bus_ids.size()));
    binding.cores += " (" + why + ")";
    return binding;
  };
  const Bitmap near = near_pci(topology, gpu);
  if (near == nullptr) return as_without("the NUMA node of GPU " + gpu + " is not known");
  hwloc_bitmap_and(near.get(), near.get(), cores.mine.get());
  if (hwloc_bitmap_iszero(near.get()) != 0) return as_without("not near GPU " + gpu);
  if (cores.is_bound()) return bind_to(topology, near, cores.mine);
  if (const Bitmap share = share_near(topology, near, pci_bus_ids, local_rank)) {
    return bind_to(topology, share, cores.mine);
  }
  Binding shared = bind_to(topology, near, cores.mine);
  shared.n_cores = 1;
  shared.cores += " (unbound)";
  return shared;
}

std::optional<std::string> cores_near_pci(const std::string& pci_bus_id,
                                          const std::string& topology_file) {
  const Bitmap near = near_pci(load_topology(/*with_devices=*/true, topology_file), pci_bus_id);
  if (near == nullptr) return std::nullopt;
  return to_text(near);
}

}  // namespace testbed
