// A run on a cluster that is not at hand: the same run_rank, one SimGrid actor per device, on
// virtual time, in this process and thread. sim_rank.hpp: what a rank is given; sim_machine.hpp:
// what it runs on; sim_fit.hpp: whether it fits; sim_labels.hpp: what the record says of it.
#pragma once

#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "runtime/config/run_config.hpp"
#include "runtime/measure/run_record.hpp"
#include "runtime/measure/timeline.hpp"

namespace testbed {

// One change to the simulated machine: what the step would take without one of its costs.
enum class WhatIf : uint8_t {
  nothing,
  free_links,       // infinite bandwidth, no latency: collectives and messages take no time
  zero_latency,     // links keep their bandwidth
  infinite_memory,  // reading weights and KV takes no time; arithmetic and launches still do
  no_waiting,       // nobody waits for a later rank or stage: wire times are still paid
};
constexpr std::string_view what_if_name(WhatIf what_if) {
  constexpr std::string_view names[] = {
      "nothing", "free_links", "zero_latency", "infinite_memory", "no_waiting"};
  return names[static_cast<int>(what_if)];
}

struct SimulatedRun {
  RunRecord record;                     // simulated, labelled; options["cluster"] names the cluster
  std::vector<RankTimeline> timelines;  // [world_size], in virtual time from the run's start
};

// world_size = tp * pp * cp * dp (dp 1 if not given). Throws ConfigError for what cannot run there:
// an illegal split, more devices than the cluster has, a model that does not fit (D28, with what
// would); JobError if ranks hang, naming them.
// memoise: collectives of groups that share no link with others take what they take alone, computed
// once; false plays every one of them as flows, which the tests hold the memo against.
SimulatedRun simulate(const RunConfig& config,
                      const ClusterSpec& cluster,
                      WhatIf what_if = WhatIf::nothing,
                      bool memoise = true);

}  // namespace testbed
