// What a simulated record has to say of itself.
#pragma once

#include "runtime/commands/simulate.hpp"

namespace testbed {

// Marks the record as simulated, names what it is of, and what its times rest on.
void label_simulated(RunRecord& record,
                     const RunConfig& config,
                     const ClusterSpec& machine,
                     const Mesh& mesh,
                     WhatIf what_if);

}  // namespace testbed
