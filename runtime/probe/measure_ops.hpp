// Times ops on a real device: medians over rounds that meet every op in turn, so that a disturbance
// of the machine falls on all alike.
#pragma once

#include <vector>

#include "parallel/comm/control.hpp"
#include "runtime/probe/probe_op.hpp"

namespace testbed {

std::vector<MeasuredOp> measure_ops(Device& device, const std::vector<ProbeOp>& ops);

// Bytes/s of one rank's reads: rank 0 by itself while the others wait, and all ranks at once, their
// sum. What a machine's memory gives to one rank, and to all.
struct ReadRates {
  double alone = 0.0;
  double together = 0.0;
};

// read() reads for some 10 ms and returns bytes/s. All ranks call it together; every rank gets the
// result. Medians of rounds in which both take turns.
ReadRates read_rates(ControlChannel& control, const std::function<double()>& read);

// read() of read_rates for an op: its bytes over its time. The device must outlive it.
std::function<double()> reading_rate(Device& device, const ProbeOp& op);

}  // namespace testbed
