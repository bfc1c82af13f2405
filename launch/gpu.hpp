// What a build can do with GPUs: launch/cuda/ does it, launch/gpu_absent.cpp (a build without CUDA)
// refuses.
#pragma once

#include "parallel/comm/mpi_world.hpp"
#include "runtime/commands/accept.hpp"
#include "runtime/commands/run.hpp"
#include "runtime/config/command_line.hpp"

namespace testbed {

// Devices that this process sees. 0 without a driver; throws DeviceError if there is one that does
// not start.
int n_visible_gpus();

// The run on one GPU per rank; the outcome on rank 0. All ranks call it together.
std::optional<RunOutcome> run_on_gpu(MpiWorld& world,
                                     const RunConfig& config,
                                     const RunInputs& inputs);
int probe_on_gpu(MpiWorld& world, const ProbeConfig& config);
int accept_on_gpu(MpiWorld& world,
                  const AcceptConfig& config,
                  const AcceptanceProfile& profile,
                  const AcceptWork& work);

}  // namespace testbed
