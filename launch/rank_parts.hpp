// What ranks on processors and ranks with GPUs are made of alike.
#pragma once

#include <functional>
#include <vector>

#include "parallel/comm/mpi_world.hpp"
#include "runtime/commands/rank_context.hpp"

namespace testbed {

// Of the faults that the world has for every group, and of a run's own; either may be nullptr.
double slowdown_of(const std::shared_ptr<Faults>& every, const std::shared_ptr<Faults>& own);

// The sample of a device whose ops take so many times as long.
std::function<double()> slowed(std::function<double()> bytes_per_s, double slowdown);

// What the faults did that the labels cannot say before: "injected: flipped bit 3 of ...".
std::function<std::vector<std::string>()> deeds_of(std::shared_ptr<Faults> faults);

// RankContext::clock_estimate over the control channel, which outlives it.
std::function<ClockEstimate()> clock_estimates(const MpiWorld& world, ControlChannel& control);

}  // namespace testbed
