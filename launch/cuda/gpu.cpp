#include "launch/gpu.hpp"

#include "kernels/base/errors.hpp"
#include "kernels/probes/cuda/bandwidth.hpp"
#include "kernels/probes/cuda/probe_gpu.hpp"
#include "launch/cuda/cuda_rank.hpp"
#include "launch/cuda/gpu_probe_groups.hpp"
#include "runtime/commands/probe.hpp"

namespace testbed {

std::optional<RunOutcome> run_on_gpu(MpiWorld& world,
                                     const RunConfig& config,
                                     const RunInputs& inputs) {
  const std::unique_ptr<ControlChannel> control = world.make_control();
  CudaProcess process(world,
                      *control,
                      {.allow_shared_gpu = config.allow_shared_gpu,
                       .layout = config.layout,
                       .deterministic = config.deterministic});
  const CudaRank rank(world, process, config, inputs);
  return run_rank(rank.context());
}

int probe_on_gpu(MpiWorld& world, const ProbeConfig& config) {
  world.set_waiting({.deadline_s = config.timeout_s,
                     .may_spin = world.n_local_ranks() <= world.n_usable_cores()});
  const std::unique_ptr<ControlChannel> control = world.make_control();
  CudaProcess process(world, *control, {.allow_shared_gpu = config.allow_shared_gpu});
  CudaStreams& streams = *process.streams();
  NcclWorld nccl(world, *control, streams.queue, streams.clock, config.timeout_s);
  const GpuProbeGroups groups(
      world, *control, nccl, streams.queue, {.deadline_s = config.timeout_s});
  CudaDevice device(process.streams(), config.compute_dtype, process.description());
  const Tensor buffer = cuda::device_tensor(DType::I32, {cuda::read_buffer_bytes() / 4});
  const DeviceSpec& spec = process.spec();
  run_probe(
      {.config = config,
       .device = device,
       .control = *control,
       .groups = groups.groups(),
       .ways = groups.ways(),
       .peak_flops = peak_flops(spec, config.compute_dtype),
       .f32_peak_flops = peak_flops(spec, DType::F32),
       .read_bandwidth_sample = [&] { return cuda::read_bandwidth_sample(streams.queue, buffer); },
       .labels = process.labels(),
       .gpu = &spec,
       .device_curves =
           [&] { return cuda::probe_gpu(streams.queue, cuda::sizes_for(spec.chip)); }});
  return static_cast<int>(ExitCode::ok);
}

}  // namespace testbed
