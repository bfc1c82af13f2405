// The emulation of a CUDA device for tests: what the stand-ins of libraries (runtime, cuBLASLt,
// NCCL) build on, and what tests ask. Streams are really asynchronous: work runs only when somebody
// waits for or asks about it. One lock around everything; work runs with it held.
//
// Environment:
//   TESTBED_EMULATED_GPUS=8, TESTBED_EMULATED_GPU_BYTES=8589934592, TESTBED_EMULATED_SM=90,
//   TESTBED_EMULATED_NO_DRIVER=1, CUDA_VISIBLE_DEVICES
//   TESTBED_EMULATION_ORDER=forward|reverse|SEED   of threads, streams and independent graph nodes
//   TESTBED_EMULATION_FAIL=NAME:N[/PLACE][:CODE][@RANK][,...]   the N-th call of NAME (from PLACE)
//     fails; NAME "kernel": the N-th kernel, when it runs
//   TESTBED_EMULATION_COUNTS=FILE   lines at exit, to FILE.RANK: "NAME COUNT", "NAME/PLACE COUNT",
//     and of what has been made and not freed "live.WHAT COUNT"
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace emulation {

// Puts work on a stream; if the stream is capturing, into the graph. try_run does the work and
// returns true, or returns false if it has to be asked again (it waits for another process). It is
// copied for each launch of a graph. Returns cudaSuccess, or why the stream takes no work.
cudaError_t enqueue(cudaStream_t stream, std::function<bool()> try_run);

// Runs what can run on all streams; true if anything did.
bool progress();

// Called first by every stand-in: counts the call, and says with which code it has to fail, if so.
std::optional<int> inject(const char* name, int default_code);
// Calls so far by name.
std::map<std::string, int64_t> call_counts();
// Instead of TESTBED_EMULATION_FAIL, counted from now.
void set_faults(const std::string& faults);

// What has been made and not freed.
struct Live {
  int64_t device_allocations = 0;
  int64_t device_bytes = 0;
  int64_t pinned_allocations = 0;  // and registered ranges
  int64_t opened_ipc_handles = 0;
  int64_t streams = 0;
  int64_t events = 0;
  int64_t graphs = 0;
  int64_t graph_execs = 0;
  bool operator==(const Live&) const = default;
};
Live live();

// Whether the n_bytes at p lie in one allocation of the device (or an opened IPC handle's).
bool is_device_memory(const void* p, size_t n_bytes);

// What the last failed kernel was said to have done wrong; empty if none failed since reset().
std::string kernel_failure();
// A failed kernel's error stays until here, as the real one's stays until the process ends.
void reset_errors();
// Overrides TESTBED_EMULATION_ORDER.
void set_order(const std::string& order);

}  // namespace emulation
