#include "parallel/comm/nccl_comms.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/base/check.hpp"
#include "kernels/base/clock.hpp"
#include "kernels/base/complaint.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/cuda/runtime.hpp"

namespace testbed {
namespace {

constexpr double roll_call_s = 2.0;
constexpr double abort_s = 10.0;

double seconds_since(int64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns) * 1e-9; }

}  // namespace

std::string nccl_failure(ncclResult_t result, const std::string& call, ncclComm_t comm) {
  const char* last = ncclGetLastError(comm);
  std::string text =
      fmt::format("{}: {} (code {})", call, ncclGetErrorString(result), static_cast<int>(result));
  if (last != nullptr && *last != '\0') text.append(": ").append(last);
  return text;
}

void check_nccl(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  throw CommError(nccl_failure(result, call));
}

NcclComms::NcclComms(std::vector<std::string> hosts, double deadline_s)
    : roll_call_(std::move(hosts)), deadline_s_(deadline_s) {
  cuda::check(cudaGetDevice(&device_), "cudaGetDevice");
}

NcclComms::~NcclComms() { CHECK(comms_.empty() || failed_ || std::uncaught_exceptions() > 0); }

NcclComm& NcclComms::add(std::string group) {
  return comms_.emplace_back(NcclComm{*this, std::move(group)});
}

void NcclComms::note(const NcclComm& comm, const char* call) {
  ++n_calls_;
  last_ = &comm;
  last_name_ = call;
}

std::string NcclComms::on(const NcclComm& comm, std::string_view call) const {
  return fmt::format("{} on {}", call, comm.group);
}

// Ranks that disagree on it have lost step.
std::string NcclComms::last_call() const {
  return last_ == nullptr ? "no call yet"
                          : fmt::format("call {}, {}", n_calls_, on(*last_, last_name_));
}

// Whether the communicator is still at work for the host; throws if it has failed.
bool NcclComms::in_progress(NcclComm& comm, std::string_view call) {
  ncclResult_t state = ncclInProgress;
  const ncclResult_t asked = ncclCommGetAsyncError(comm.handle, &state);
  if (asked != ncclSuccess) {
    fail(nccl_failure(asked, on(comm, "ncclCommGetAsyncError"), comm.handle));
  }
  if (state != ncclSuccess && state != ncclInProgress) {
    fail(nccl_failure(state, on(comm, call), comm.handle));
  }
  return state == ncclInProgress;
}

void NcclComms::accept(NcclComm& comm, std::string_view call, ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  fail(nccl_failure(result, on(comm, call), comm.handle));
}

void NcclComms::settle(NcclComm& comm, std::string_view call, ncclResult_t result) {
  accept(comm, call, result);
  if (result == ncclSuccess) return;
  constexpr double patience_s = 0.002;  // of a call that only enqueues
  const int64_t begin_ns = now_ns();
  while (in_progress(comm, call)) {
    const double waited_s = seconds_since(begin_ns);
    if (waited_s < patience_s) {
      sched_yield();
      continue;
    }
    if (waited_s > deadline_s_) {
      fail(fmt::format("{} did not end within {:g} s", on(comm, call), deadline_s_));
    }
    roll_call_.answer(on(comm, call));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void NcclComms::start_group(NcclComm& comm) {
  accept(comm, "ncclGroupStart", ncclGroupStart());
  in_group_ = true;
}

void NcclComms::end_group(NcclComm& comm) {
  in_group_ = false;
  settle(comm, "ncclGroupEnd", ncclGroupEnd());
}

void NcclComms::watch(double waited_s) {
  if (failed_) return;  // the error is on its way up
  roll_call_.answer(last_call());
  for (NcclComm& comm : comms_) {
    in_progress(comm, last_ == &comm ? last_name_ : "an earlier call");
  }
  if (waited_s > deadline_s_) {
    fail(fmt::format("the GPU did not finish within {:g} s ({})", deadline_s_, last_call()));
  }
}

void NcclComms::fail(const std::string& what) {
  if (std::exchange(in_group_, false)) ncclGroupEnd();  // drops what a failed call left of it
  std::string text = what;
  if (!ending_) text.append("; ").append(roll_call_.call(what, roll_call_s));
  if (!abort_all()) text += fmt::format("; ncclCommAbort did not return within {:g} s", abort_s);
  throw CommError(text);
}

// Each on a thread of its own, which is left behind if it does not return: an abort may wait for
// kernels of another communicator. True if all have.
bool NcclComms::abort_all() {
  struct Remaining {
    std::mutex mutex;
    std::condition_variable changed;
    size_t n = 0;
  };
  failed_ = true;
  const auto remaining = std::make_shared<Remaining>();
  for (NcclComm& comm : comms_) {
    if (comm.handle != nullptr) ++remaining->n;
  }
  for (NcclComm& comm : comms_) {
    if (comm.handle == nullptr) continue;
    std::thread([handle = std::exchange(comm.handle, nullptr), device = device_, remaining] {
      cudaSetDevice(device);
      ncclCommAbort(handle);
      const std::lock_guard lock(remaining->mutex);
      --remaining->n;
      remaining->changed.notify_one();
    }).detach();
  }
  std::unique_lock lock(remaining->mutex);
  return remaining->changed.wait_for(
      lock, std::chrono::duration<double>(abort_s), [&] { return remaining->n == 0; });
}

// Finalizing is collective, and waits for what has been enqueued.
void NcclComms::finish(NcclComm& comm) {
  settle(comm, "ncclCommFinalize", ncclCommFinalize(comm.handle));
  const ncclResult_t result = ncclCommDestroy(std::exchange(comm.handle, nullptr));
  if (result != ncclSuccess) fail(nccl_failure(result, on(comm, "ncclCommDestroy")));
}

void NcclComms::release(NcclComm& comm) {
  if (failed_) return;
  if (std::uncaught_exceptions() > 0) {
    // The other ranks may never come to finalize it.
    abort_all();
    return;
  }
  ending_ = true;
  try {
    finish(comm);
    ending_ = false;
  } catch (const CommError& error) {
    complain(error.what());  // from destructors
    return;
  }
  if (last_ == &comm) last_ = nullptr;
  comms_.remove_if([&](const NcclComm& other) { return &other == &comm; });
}

}  // namespace testbed
