// LinkSpec from TOML: configs/links/*.toml.
#pragma once

#include <string>

#include "kernels/base/cluster_spec.hpp"

namespace testbed {

// A preset of configs/links, or a .toml file. Throws ConfigError with file:line.
LinkSpec read_link(const std::string& name_or_path);

// The link at another line rate (bytes/s, one direction): calibrated bandwidths keep their
// fraction of it.
LinkSpec at_line_rate(LinkSpec link, double bytes_per_s);

}  // namespace testbed
