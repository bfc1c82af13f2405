// What a process with a GPU is: which one it has and near which cores, what is known of it, and
// what NCCL was told of the links. Made once, before anything is allocated.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/device_spec.hpp"
#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/nvml.hpp"
#include "launch/binding.hpp"
#include "launch/gpu_placement.hpp"
#include "parallel/comm/layout.hpp"
#include "parallel/comm/mpi_world.hpp"

namespace testbed {

struct GpuOptions {
  bool allow_shared_gpu = false;
  Layout layout = Layout::automatic;
  bool deterministic = false;  // no sums in the switch, whose order is not stated
};

class CudaProcess {
 public:
  // All ranks call it together; a mistake of one is told to all. Throws ConfigError where ranks and
  // GPUs do not match or the layout cannot be had.
  CudaProcess(const MpiWorld& world, ControlChannel& control, const GpuOptions& options);
  ~CudaProcess();
  CudaProcess(const CudaProcess&) = delete;
  CudaProcess& operator=(const CudaProcess&) = delete;

  const std::shared_ptr<CudaStreams>& streams() const { return streams_; }
  const DeviceSpec& spec() const { return spec_; }
  const std::string& description() const { return description_; }
  const GpuSeat& seat() const { return seats_[static_cast<size_t>(rank_)]; }
  const HostTopology& topology() const { return topology_; }
  const Binding& binding() const { return binding_; }
  const std::vector<std::string>& labels() const { return labels_; }
  const std::optional<NvmlDevice>& nvml() const { return nvml_device_; }
  Layout layout() const { return layout_; }
  const std::filesystem::path& nccl_log() const { return log_; }
  // What cudaMemGetInfo says is free, in bytes: what a plan may take.
  int64_t free_bytes() const;
  // The log has told all: collectives outside graphs would go on writing a line each.
  void quieten_nccl();
  // Of the device, its driver and what NCCL was told; for the fingerprint.
  std::map<std::string, std::string> environment() const;
  std::map<std::string, std::string> libraries() const;

 private:
  GpuSeat take_seat(const MpiWorld& world);
  void describe();
  void choose_links(const MpiWorld& world, ControlChannel& control, const GpuOptions& options);

  int rank_;
  Layout layout_;
  std::vector<GpuSeat> seats_;  // [world]
  DeviceSpec spec_;
  std::string description_;
  Nvml nvml_;
  std::optional<NvmlDevice> nvml_device_;
  HostTopology topology_;
  Binding binding_;
  std::vector<std::string> labels_;
  Environment nccl_;
  std::filesystem::path log_;
  std::shared_ptr<CudaStreams> streams_;
};

}  // namespace testbed
