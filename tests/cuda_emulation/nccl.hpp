// A stand-in for the NCCL library, at its link-level interface (the real nccl.h), over MPI: for
// programs whose ranks are MPI ranks. Operations are work on the emulated streams and never block
// the host; sends complete when their receivers have taken them (MPI_Issend), as a program may not
// rely on NCCL's buffers. Calls on non-blocking communicators say ncclInProgress for a while, and
// it is an error to use a communicator meanwhile, as it is to disagree between ranks on what is
// called, or to give memory that is not the device's.
//
// Faults: TESTBED_EMULATION_FAIL (emulation.hpp) by the calls' names; that of ncclCommGetAsyncError
// is an asynchronous error. TESTBED_EMULATION_HANG=NAME:N@RANK: the N-th operation of that name on
// that world rank never ends; of ncclCommInitRankConfig, the host does not return from it.
#pragma once

#include <mpi.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

struct ncclComm {
  MPI_Comm mpi = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  bool blocking = true;
  bool finalized = false;
  std::atomic<bool> aborted = false;  // on a thread that may not call MPI
  int polls_left = 0;                 // that still say ncclInProgress
  std::function<bool()> background;   // true once done: what ncclInProgress is about
  ncclResult_t error = ncclSuccess;   // asynchronous, and stays
  std::string last_error;
  std::shared_ptr<int> uses = std::make_shared<int>(0);  // one reference more for each work item
};

namespace emulation {

// Made and neither destroyed nor aborted.
int live_nccl_communicators();

// Of the stand-in itself.
namespace nccl {

// Says what the caller did wrong.
ncclResult_t misuse(ncclComm* comm, const std::string& what);
// ncclSuccess if the communicator may be given to `call` now.
ncclResult_t usable(ncclComm* comm, const char* call);
// What a call returns whose work goes on in the background.
ncclResult_t in_background(ncclComm* comm, std::function<bool()> work);

struct Transfer {
  bool is_send;
  void* data;
  int64_t n_bytes;
  int peer;
};
enum class Collective : int64_t { all_reduce, all_gather, reduce_scatter };
struct CollectiveCall {
  const char* name;
  Collective kind;
  const void* from;
  void* into;
  int64_t count;  // as the call's argument
  ncclDataType_t type;
};
// Counts the operation, which begins, and says whether it shall never end.
bool hangs(const std::string& name);
int64_t type_bytes(ncclDataType_t type);  // 0: not known here

// What emulation::enqueue takes.
std::function<bool()> transfers(ncclComm* comm, std::vector<Transfer> transfers);
std::function<bool()> collective(ncclComm* comm, const CollectiveCall& call);

}  // namespace nccl
}  // namespace emulation
