// Which cores a rank uses. A launcher's binding is kept; without one the host's cores are dealt out
// in equal slices, so that ranks do not move about; with more ranks than cores nothing is bound.
// A rank with a GPU stays on the cores near it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace testbed {

struct Binding {
  int n_cores = 1;    // that this rank may use
  std::string cores;  // "0-3", as reported; ends in "(unbound)" if several ranks share them
};

// Binds the calling thread, and so those it starts, and says to what.
Binding bind_rank(int local_rank, int n_local_ranks);

// The same for ranks with GPUs: pci_bus_ids [n_local_ranks], "0000:1b:00.0". The cores of the NUMA
// node that the rank's GPU hangs on are dealt out among the ranks whose GPUs hang there too. Of a
// launcher's binding what is near is kept; where that is nothing, or the node is not known, it is
// as bind_rank, and the text says so.
Binding bind_to_pci(const std::vector<std::string>& pci_bus_ids, int local_rank);

// Near that device, "0-3"; nullopt: not known. From a file of hwloc's XML instead of this host's
// topology if given.
std::optional<std::string> cores_near_pci(const std::string& pci_bus_id,
                                          const std::string& topology_file = {});

}  // namespace testbed
