// Names the rank that holds its peers up, from the timelines of a run: by each rank's own clock, so
// that no error of clocks takes part, and only where its best is worse than the worst of its peers.
#pragma once

#include <span>
#include <vector>

#include "runtime/accept/case.hpp"
#include "runtime/measure/timeline.hpp"

namespace testbed {

// Peers are the ranks of a stage: they do the same work in the same number of steps. Of every op of
// a decode step, and of every stretch between two collectives, a rank's time in a repeat is the
// lower quartile over its steps: what it takes when the operating system does not take turns with
// it. The sums over a step are held against each other:
// - device: its products with whole matrices take longer per byte of weights (experts are no
//   measure: how much of them a rank reads is up to its tokens),
// - rank: between its ops and its collectives it spends more, in parts of what a peer's step takes.
// Blamed is a rank whose fastest repeat is slower than the slowest repeats of its peers (their
// median) by more than `tolerance`, a fraction. A rank without peers is not judged.
std::vector<Blame> stragglers(std::span<const RankTimeline> timelines, double tolerance);

}  // namespace testbed
