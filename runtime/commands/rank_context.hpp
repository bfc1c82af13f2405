// RankContext: all that one rank is given. The function that runs on it never knows which kind of
// device it is on.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/device_counters.hpp"
#include "kernels/device.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/control.hpp"
#include "parallel/comm/nccl_log.hpp"
#include "parallel/mesh.hpp"
#include "runtime/commands/run_inputs.hpp"
#include "runtime/measure/run_record.hpp"
#include "runtime/model/step_context.hpp"

namespace testbed {

// What the process found out about where it runs; for peaks and the fingerprint.
struct MachineInfo {
  std::string host;
  std::string memory_domain;  // what this rank's memory bandwidth is shared within
  std::string binding;        // its cores
  int ranks_on_host = 1;
  int threads = 1;                                // of this rank
  int cores_on_host = 1;                          // that its ranks may use
  int64_t llc_bytes = 0;                          // last-level cache of the memory domain
  double peak_flops = 0.0;                        // dense FLOP/s of this rank in the compute dtype
  std::function<double()> read_bandwidth_sample;  // bytes/s of this rank's read loop, now
  // Around each timed generation: what the device's counters say of it. Both empty: it has none.
  std::function<void()> begin_counters = {};
  std::function<DeviceCounters()> end_counters = {};
  // Does the work and says what DRAM's counters say of it, or why they do not; empty: not asked
  // for.
  std::function<DeviceCounters(const std::function<void()>& work)> count_dram = {};
  std::vector<std::string> labels = {};  // what of the machine a reader has to know
  // What was done to this rank on purpose (--inject) so far, beyond what labels can say before; may
  // be empty.
  std::function<std::vector<std::string>()> deeds = {};
  std::map<std::string, std::string> environment;
  std::map<std::string, std::string> libraries;
};

// Estimates of this rank's clock against rank 0's; taken before and after the measurement.
struct ClockEstimate {
  int64_t offset_ns = 0;  // added to this rank's stamps
  int64_t error_ns = 0;
};

struct RankContext {
  const RunConfig& config;
  const RunInputs& inputs;
  Mesh mesh;
  int rank = 0;
  Device& device;
  std::function<std::unique_ptr<Device>(DType)> make_device;
  Groups groups;
  ControlChannel& control;
  MachineInfo machine;
  MemoryRecord planned;                           // what it will hold; agreed to fit
  std::function<ClockEstimate()> clock_estimate;  // all ranks call it together
  // What the groups' messages travel over; known once everything has run, and asked of all ranks
  // together. May throw: not what was asked for.
  std::function<std::map<Axis, std::string>()> transports;
  std::map<Axis, std::string> host_transports;  // of communicators of host tensors
  // NCCL's protocol of an operation of these groups, once transports() has been asked; may be
  // empty.
  std::function<NcclProtocol(const CommRecord&)> protocol_of = {};
  // Stamps cost nothing and every repeat is the same: one generation is the timed and the breakdown
  // pass, and nothing is warmed up or checked.
  bool virtual_time = false;

  Coordinates coordinates() const { return mesh.coordinates(rank); }
};

}  // namespace testbed
