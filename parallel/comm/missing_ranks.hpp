// What a wait of a group says when its deadline has passed.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.hpp"

namespace testbed {

using Whereabouts = std::function<std::string(const std::vector<int>& world_ranks)>;

// "all_reduce on tp group {0,1}: ranks 1 (host) did not arrive within 120 s", and what
// MpiWaiting::whereabouts adds. peers: ranks of the group; hosts [size].
std::string missing_ranks(const GroupInfo& group,
                          const std::vector<std::string>& hosts,
                          std::string_view op,
                          const std::vector<int>& peers,
                          double deadline_s,
                          const Whereabouts& whereabouts);

}  // namespace testbed
