// ClusterSpec from and to TOML: configs/clusters/*.toml. The file names its device, link and NIC by
// preset ("h100-sxm") or holds them as tables ([device], [link], [fabric.nic]); `base` names a
// cluster whose every field holds unless the file states it.
#pragma once

#include <optional>
#include <string>

#include "kernels/base/cluster_spec.hpp"

namespace testbed {

// A preset of configs/clusters, or a .toml file. Throws ConfigError with file:line.
ClusterSpec read_cluster(const std::string& name_or_path);

// The same format in one file, with the device, link and NIC as tables; reads back equal, to
// rounding.
std::string cluster_toml(const ClusterSpec& cluster);

// --link-gb-s, --link-us: the links within nodes, not the fabric between them nor a tree's socket
// link. gb_s: the line rate of each device's link, one direction, in 1e9 bytes/s; calibrated
// bandwidths scale with it, so the fraction of the line rate that each algorithm reaches stays.
// us: what one latency step costs, in every algorithm; start and fill costs stay.
ClusterSpec with_links(ClusterSpec cluster,
                       std::optional<double> link_gb_s,
                       std::optional<double> link_us);

}  // namespace testbed
