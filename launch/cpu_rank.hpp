// What a CPU rank is made of: its cores and threads, its device, its communicators, and what it
// knows of the machine.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/cpu_device.hpp"
#include "launch/binding.hpp"
#include "parallel/comm/mpi_world.hpp"
#include "runtime/commands/rank_context.hpp"

namespace testbed {

// The process's side: bound once, whatever it then runs.
class CpuProcess {
 public:
  explicit CpuProcess(const MpiWorld& world, std::optional<int> threads);

  const Binding& binding() const { return binding_; }
  const std::shared_ptr<cpu::ThreadPool>& pool() const { return pool_; }
  cpu::Isa isa() const { return isa_; }
  bool may_spin() const { return may_spin_; }
  double peak_flops(DType operands);  // measured the first time it is asked for
  double read_bandwidth_sample();     // bytes/s, now
  int64_t llc_bytes() const { return llc_bytes_; }
  // Set when more threads were asked for than the binding has cores (D19).
  const std::string& warning() const { return warning_; }

 private:
  int n_local_ranks_;
  Binding binding_;
  bool may_spin_;
  std::string warning_;
  cpu::Isa isa_;
  std::shared_ptr<cpu::ThreadPool> pool_;
  int64_t llc_bytes_;
  std::map<DType, double> peaks_;
  Tensor read_buffer_;
};

// All processes call it: a mistake of one (the instruction set, the threads) is told to all. Says
// on rank 0 what is doubtful.
std::unique_ptr<CpuProcess> start_cpu_process(const MpiWorld& world,
                                              ControlChannel& control,
                                              std::optional<int> threads);

// What a rank would hold on this host, and what the host has.
MemoryRecord cpu_memory(const RunConfig& config,
                        const RunInputs& inputs,
                        const Mesh& mesh,
                        int rank);

// The machine as this rank has it; peak_flops: of its process. The process outlives what is made.
MachineInfo cpu_machine(const MpiWorld& world, CpuProcess& process, double peak_flops);

// One configuration on this rank: the mesh's groups and the context that run_rank takes.
class CpuRank {
 public:
  // All ranks call it together. Throws ConfigError for a mesh that does not match the world, and
  // for what does not fit the hosts' memory.
  CpuRank(MpiWorld& world, CpuProcess& process, const RunConfig& config, const RunInputs& inputs);
  const RankContext& context() const { return *context_; }

 private:
  std::unique_ptr<ControlChannel> control_;
  std::unique_ptr<Communicator> tp_;
  std::unique_ptr<Communicator> cp_;
  std::unique_ptr<Communicator> ep_;
  std::unique_ptr<Communicator> pp_;
  std::unique_ptr<Communicator> pp_tokens_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<RankContext> context_;
};

}  // namespace testbed
