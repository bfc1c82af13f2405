// AcceptanceProfile: what a cluster is expected to do, figure by figure, each with its tolerance
// and source: configs/acceptance/*.toml, or what `testbed probe --acceptance` wrote. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace testbed {

// What a figure was measured of. A field that is not set holds for all.
struct FigureKey {
  std::string figure;  // "device.read_gb_s", "link.one_way_gb_s", "collective.us", ...: figures.hpp
  std::optional<std::string> op;         // of a collective: comm_op_name
  std::optional<int> ranks;              // of the group
  std::optional<int64_t> bytes;          // as nccl-tests counts them
  std::optional<std::string> scope;      // "within-host" or "between-hosts"
  std::optional<std::string> algorithm;  // algorithm_name: a ring is not held to what NVLS does
  std::optional<std::string> dtype;
  std::optional<std::string> model;  // preset, with its split: "llama3-8b tp 8"
  bool operator==(const FigureKey&) const = default;
};

// A figure passes at expected * (1 - tolerance) and above if more is better, at
// expected * (1 + tolerance) and below if less is (figures.hpp says which).
struct Expectation {
  FigureKey key;
  double expected = 0.0;
  double tolerance = 0.0;  // a fraction
  std::string source;      // where the expected figure is from
  std::string where;       // file:line
};

// What preflight holds every host to; what is not set is not asked for.
struct Requirements {
  std::optional<int> devices_per_host;
  std::optional<std::string> device_name;  // in the device's own description
  std::optional<double> device_memory_gb;  // at least
  std::optional<double> host_memory_gb;    // available, at least
  std::optional<double> dev_shm_gb;        // free in /dev/shm, at least
  std::optional<bool> ecc;
  std::optional<double> clock_mhz;  // of the device under load, at least
};

struct AcceptanceProfile {
  std::string name;
  std::string device;              // DeviceChoice's name: "cpu" or "cuda"
  std::string description;         // of the hardware
  bool tried_on_hardware = false;  // else the verdict says that the profile never met its hardware
  // A collective of up to this payload is gated by its time, from that payload on by its bus
  // bandwidth, and in between by neither: there both would measure the mixture.
  int64_t latency_up_to_bytes = 0;
  int64_t bandwidth_from_bytes = 0;
  // A device is an outlier of its cohort beyond max(median absolute deviation, this * median).
  double cohort_tolerance = 0.10;
  int flaky_allowed = 0;  // cases that failed and then passed; more of them reject
  Requirements requirements;
  std::vector<Expectation> expectations;
  std::string source;  // the file
};

}  // namespace testbed
