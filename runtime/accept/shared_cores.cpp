#include "runtime/accept/shared_cores.hpp"

#include <algorithm>

namespace testbed {

bool cores_are_shared(const AcceptContext& context) {
  const bool mine = context.machine.ranks_on_host > context.machine.cores_on_host;
  const std::vector<Bytes> all = context.control.all_gather({mine ? std::byte{1} : std::byte{0}});
  return std::any_of(
      all.begin(), all.end(), [](const Bytes& of_rank) { return of_rank.front() != std::byte{0}; });
}

}  // namespace testbed
