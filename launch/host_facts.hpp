// What a process finds out about its host and itself for preflight to compare between hosts.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "parallel/comm/mpi_world.hpp"

namespace testbed {

using Facts = std::map<std::string, std::string>;

// "testbed", "testbed.build" (of the program's bytes), "mpi", "kernel", "processor", "governor",
// "cores" (that the host's ranks may use), "ranks_on_host", "memory_gb", "memory_available_gb",
// "dev_shm_free_gb", and of the environment "env.NAME" for what Open MPI, NCCL, UCX, CUDA and
// testbed heed. What is not known is left out. Figures have three decimals.
Facts host_facts(const MpiWorld& world);

// The environment variables among these ("NAME=value", ended by nullptr) that may change what is
// measured; what differs between the ranks of a host by design is left out.
Facts environment_facts(const char* const* environment);

// Of Linux's files, which a test may replace.
Facts processor_facts(const std::filesystem::path& cpuinfo = "/proc/cpuinfo",
                      const std::filesystem::path& governor =
                          "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");

// Which NICs are nearest to a PCI device: those that share most of its path in sysfs, "mlx5_0".
// Empty: the host has none, or the device is not there.
std::string nearest_nics(const std::string& pci_bus_id, const std::filesystem::path& sys = "/sys");

}  // namespace testbed
