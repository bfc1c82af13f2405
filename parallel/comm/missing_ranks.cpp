#include "parallel/comm/missing_ranks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace testbed {

std::string missing_ranks(const GroupInfo& group,
                          const std::vector<std::string>& hosts,
                          std::string_view op,
                          const std::vector<int>& peers,
                          double deadline_s,
                          const Whereabouts& whereabouts) {
  std::vector<int> world_ranks;
  world_ranks.reserve(peers.size());
  std::vector<std::string> names;
  names.reserve(peers.size());
  for (const int r : peers) {
    const auto peer = static_cast<size_t>(r);
    world_ranks.push_back(group.world_ranks[peer]);
    names.push_back(fmt::format("{} ({})", group.world_ranks[peer], hosts[peer]));
  }
  return fmt::format("{} on {} group {{{}}}: ranks {} did not arrive within {:g} s{}",
                     op,
                     axis_name(group.axis),
                     fmt::join(group.world_ranks, ","),
                     fmt::join(names, ", "),
                     deadline_s,
                     whereabouts ? whereabouts(world_ranks) : "");
}

}  // namespace testbed
