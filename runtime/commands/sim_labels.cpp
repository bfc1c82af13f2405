#include "runtime/commands/sim_labels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/sim/sim_device.hpp"

namespace testbed {
namespace {

std::string calibration(const std::string& source) {
  return source.empty() || source == "none" ? "ideal, not calibrated" : source;
}

// The hosts of the tables differ: what is said of one's buses need not hold for another's.
bool carries_sharing(const LinkSpec& link) {
  if (!link.timing.source.starts_with("carried")) return false;
  return std::any_of(link.timing.of.begin(), link.timing.of.end(), [](const auto& entry) {
    return std::any_of(entry.second.begin(), entry.second.end(), [](const ProtocolTiming& p) {
      return p.sharing > 0.0;
    });
  });
}

std::vector<std::string> labels_of(const RunConfig& config,
                                   const ClusterSpec& cluster,
                                   const Mesh& mesh,
                                   bool has_experts,
                                   WhatIf what_if) {
  const int n_devices = cluster.node.n_devices;
  std::vector<std::string> labels;
  labels.push_back(fmt::format("SIMULATED on {}: {}", cluster.name, cluster.description));
  if (!cluster.device.peak_flops.contains(MathType::bf16) && config.compute_dtype == DType::BF16) {
    labels.push_back(fmt::format("{} has no bf16: its arithmetic is charged as {}",
                                 cluster.device.name,
                                 math_name(math_of(cluster.device, DType::BF16))));
  }
  if (carries_sharing(cluster.node.link)) {
    labels.push_back(
        "warning: how its devices share the host's buses is carried from another host: "
        "servers with peer-to-peer paths do far better");
  }
  if (what_if != WhatIf::nothing) {
    labels.push_back(fmt::format("what if: {}", what_if_name(what_if)));
  }
  labels.push_back(has_experts ? "token ids and experts are drawn, not computed: experts uniformly"
                               : "token ids are drawn, not computed");
  labels.push_back("kernel times: " + calibration(cluster.device.timing.source));
  if (mesh.world_size() > 1) {
    labels.push_back("link times: " + calibration(cluster.node.link.timing.source));
  }
  if (mesh.world_size() > n_devices) {
    labels.push_back("fabric times: " + calibration(cluster.fabric->nic.timing.source));
    labels.push_back(fmt::format("rank r sits on device r mod {0} of node r / {0}", n_devices));
  }
  if (mesh.world_size() > n_devices && n_devices % mesh.tp != 0) {
    labels.push_back(
        fmt::format("warning: tp {} crosses nodes of {} devices: its all-reduces go over {}",
                    mesh.tp,
                    n_devices,
                    cluster.fabric->nic.name));
  }
  return labels;
}

}  // namespace

void label_simulated(RunRecord& record,
                     const RunConfig& config,
                     const ClusterSpec& machine,
                     const Mesh& mesh,
                     WhatIf what_if) {
  RunDescription& run = record.run;
  run.simulated = true;
  record.instrument_overhead.reset();  // virtual stamps cost nothing
  for (PhaseRecord& phase : record.phases) phase.instrument_overhead.reset();
  run.options["cluster"] = machine.name;
  const ClusterConfig& asked = config.cluster;
  if (asked.algorithm) run.options["algorithm"] = *asked.algorithm;
  if (asked.link_gb_s) run.options["link_gb_s"] = fmt::format("{}", *asked.link_gb_s);
  if (asked.link_us) run.options["link_us"] = fmt::format("{}", *asked.link_us);
  const bool has_experts =
      std::any_of(record.phases.begin(), record.phases.end(), [](const PhaseRecord& phase) {
        return phase.experts.has_value();
      });
  const std::vector<std::string> labels = labels_of(config, machine, mesh, has_experts, what_if);
  run.labels.insert(run.labels.begin(), labels.begin(), labels.end());
}

}  // namespace testbed
