// NcclComms: the NCCL communicators of this rank, all non-blocking, so that no call into NCCL can
// hang: a call that NCCL says is in progress is waited for under the deadline. What goes wrong with
// one goes wrong for all: a roll call tells which ranks are gone, all communicators are aborted,
// and a CommError says it.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/roll_call.hpp"

namespace testbed {

class NcclComms;

struct NcclComm {
  NcclComms& of;
  std::string group;  // "tp group {0,1}"
  ncclComm_t handle = nullptr;
};

// "ncclAllReduce on tp group {0,1}: unhandled cuda error (code 1): what NCCL says of it".
std::string nccl_failure(ncclResult_t result, const std::string& call, ncclComm_t comm = nullptr);
// Throws CommError with that, unless result is ncclSuccess: for calls without a communicator.
void check_nccl(ncclResult_t result, const char* call);

class NcclComms {
 public:
  // All ranks of the job together, once the GPU is set; their hosts.
  NcclComms(std::vector<std::string> hosts, double deadline_s);
  ~NcclComms();
  NcclComms(const NcclComms&) = delete;
  NcclComms& operator=(const NcclComms&) = delete;

  // Its handle is for the caller to make.
  NcclComm& add(std::string group);
  // Ends it, with the others of its group; no graph may hold its calls. After a failure nothing is
  // left to do.
  void release(NcclComm& comm);

  // The host enqueues a call, or replays it: for the messages.
  void note(const NcclComm& comm, const char* call);
  // Returns once the call that gave `result` is done as far as the host is concerned.
  void settle(NcclComm& comm, std::string_view call, ncclResult_t result);
  // The same of a call within a group of calls, whose end is what is waited for.
  void accept(NcclComm& comm, std::string_view call, ncclResult_t result);
  void start_group(NcclComm& comm);
  void end_group(NcclComm& comm);
  // In every look of a wait for the device, `waited_s` long so far: throws if it is in vain.
  void watch(double waited_s);

 private:
  bool in_progress(NcclComm& comm, std::string_view call);
  std::string on(const NcclComm& comm, std::string_view call) const;
  std::string last_call() const;
  [[noreturn]] void fail(const std::string& what);
  bool abort_all();
  void finish(NcclComm& comm);

  RollCall roll_call_;
  double deadline_s_;
  int device_ = 0;
  std::list<NcclComm> comms_;  // their addresses are in tapes
  bool failed_ = false;
  bool ending_ = false;    // the others may be gone already
  bool in_group_ = false;  // of calls
  int64_t n_calls_ = 0;
  const NcclComm* last_ = nullptr;
  const char* last_name_ = "";
};

}  // namespace testbed
