// Which cores a rank uses. A launcher's binding is kept; without one the host's cores are dealt out
// in equal slices, so that ranks do not move about; with more ranks than cores nothing is bound.
#pragma once

#include <string>

namespace testbed {

struct Binding {
  int n_cores = 1;    // that this rank may use
  std::string cores;  // "0-3", as reported; ends in "(unbound)" if several ranks share them
};

// Binds the calling thread, and so those it starts, and says to what.
Binding bind_rank(int local_rank, int n_local_ranks);

}  // namespace testbed
