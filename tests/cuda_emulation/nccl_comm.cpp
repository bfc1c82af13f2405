// The NCCL stand-in's communicators: made, split, finalized, and what is in progress with them.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>

#include "kernels/base/clock.hpp"
#include "tests/cuda_emulation/emulation.hpp"
#include "tests/cuda_emulation/nccl.hpp"

namespace {

std::mutex registry;                 // aborts come from other threads
std::set<ncclComm*> live_comms;      // made and neither destroyed nor aborted
std::set<ncclComm*> aborted_before;  // work items may still hold them

bool is_done(MPI_Request& request) {
  int done = 0;
  return MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
}

ncclResult_t fault(const char* call) {
  const std::optional<int> code = emulation::inject(call, ncclSystemError);
  return code ? static_cast<ncclResult_t>(*code) : ncclSuccess;
}

ncclComm* make(bool blocking) {
  auto* comm = new ncclComm;
  comm->blocking = blocking;
  const std::lock_guard lock(registry);
  live_comms.insert(comm);
  return comm;
}

void take_mpi(ncclComm* comm, MPI_Comm mpi) {
  comm->mpi = mpi;
  MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
  MPI_Comm_rank(mpi, &comm->rank);
  MPI_Comm_size(mpi, &comm->size);
}

bool is_live(ncclComm* comm) {
  const std::lock_guard lock(registry);
  return live_comms.contains(comm);
}

// All ranks tell their color and key, then those of one color make their communicator.
struct Split {
  int mine[2];
  std::vector<int> all;
  MPI_Request request = MPI_REQUEST_NULL;

  std::vector<int> members() const {
    std::vector<std::pair<int, int>> by_key;
    for (size_t r = 0; r < all.size() / 2; ++r) {
      if (all[2 * r] == mine[0]) by_key.emplace_back(all[2 * r + 1], static_cast<int>(r));
    }
    std::sort(by_key.begin(), by_key.end());
    std::vector<int> ranks;
    for (const auto& [key, rank] : by_key) ranks.push_back(rank);
    return ranks;
  }
};

MPI_Comm create(MPI_Comm parent, const std::vector<int>& ranks) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group mine = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Comm_group(parent, &all);
  MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &mine);
  MPI_Comm_create_group(parent, mine, 2, &made);
  MPI_Group_free(&mine);
  MPI_Group_free(&all);
  return made;
}

}  // namespace

namespace emulation {

int live_nccl_communicators() {
  const std::lock_guard lock(registry);
  return static_cast<int>(live_comms.size());
}

namespace nccl {

ncclResult_t misuse(ncclComm* comm, const std::string& what) {
  std::fprintf(stderr, "NCCL stand-in: %s\n", what.c_str());
  if (comm != nullptr) comm->last_error = what;
  return ncclInvalidUsage;
}

ncclResult_t usable(ncclComm* comm, const char* call) {
  if (!is_live(comm)) return misuse(nullptr, std::string(call) + ": no such communicator");
  if (comm->finalized) return misuse(comm, std::string(call) + ": after ncclCommFinalize");
  if (comm->polls_left > 0 || comm->background) {
    return misuse(comm, std::string(call) + ": while another call is in progress");
  }
  return comm->error;
}

ncclResult_t in_background(ncclComm* comm, std::function<bool()> work) {
  if (comm->blocking) {
    while (work && !work()) progress();
    return ncclSuccess;
  }
  comm->polls_left = 2;
  comm->background = std::move(work);
  return ncclInProgress;
}

}  // namespace nccl
}  // namespace emulation

using emulation::nccl::in_background;
using emulation::nccl::misuse;
using emulation::nccl::usable;

extern "C" {

const char* ncclGetErrorString(ncclResult_t code) {
  constexpr const char* texts[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  return code >= 0 && code < ncclNumResults ? texts[code] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
  return comm == nullptr ? "" : comm->last_error.c_str();
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const ncclResult_t code = fault("ncclGetUniqueId")) return code;
  std::memset(id, 0, sizeof *id);
  const int64_t parts[] = {getpid(), testbed::now_ns()};
  std::memcpy(id->internal, parts, sizeof parts);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* made, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (const ncclResult_t code = fault("ncclCommInitRankConfig")) return code;
  if (emulation::nccl::hangs("ncclCommInitRankConfig")) {
    while (true) pause();
  }
  int world_size = 0;
  int world_rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  if (size != world_size || rank != world_rank) return misuse(nullptr, "not the ranks of MPI");
  if (config->magic != 0xcafebeef)
    return misuse(nullptr, "a config without NCCL_CONFIG_INITIALIZER");
  constexpr ncclUniqueId none{};
  if (std::memcmp(&id, &none, sizeof id) == 0) return misuse(nullptr, "no unique id");
  struct Init {
    MPI_Comm mpi = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  ncclComm* comm = make(config->blocking != 0);
  *made = comm;
  const auto init = std::make_shared<Init>();
  MPI_Comm_idup(MPI_COMM_WORLD, &init->mpi, &init->request);
  return in_background(comm, [comm, init] {
    if (!is_done(init->request)) return false;
    take_mpi(comm, init->mpi);
    return true;
  });
}

ncclResult_t ncclCommSplit(
    ncclComm_t parent, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  if (const ncclResult_t code = fault("ncclCommSplit")) return code;
  if (const ncclResult_t code = usable(parent, "ncclCommSplit")) return code;
  *made = nullptr;
  const auto split = std::make_shared<Split>();
  split->mine[0] = color;
  split->mine[1] = key;
  split->all.resize(2 * static_cast<size_t>(parent->size));
  MPI_Iallgather(
      split->mine, 2, MPI_INT, split->all.data(), 2, MPI_INT, parent->mpi, &split->request);
  const bool blocking = config == nullptr ? parent->blocking : config->blocking != 0;
  return in_background(parent, [parent, split, made, blocking] {
    if (!is_done(split->request)) return false;
    ncclComm* comm = make(blocking);
    take_mpi(comm, create(parent->mpi, split->members()));
    comm->polls_left = blocking ? 0 : 1;
    *made = comm;
    return true;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (const std::optional<int> code = emulation::inject("ncclCommGetAsyncError", ncclRemoteError)) {
    comm->error = static_cast<ncclResult_t>(*code);
  }
  if (!is_live(comm)) return misuse(nullptr, "ncclCommGetAsyncError: no such communicator");
  *state = comm->error;
  if (comm->error != ncclSuccess) return ncclSuccess;
  if (comm->polls_left > 0) {
    --comm->polls_left;
    *state = ncclInProgress;
    return ncclSuccess;
  }
  if (comm->background) {
    if (comm->background()) {
      comm->background = {};
    } else {
      *state = ncclInProgress;
    }
  }
  return ncclSuccess;
}

// Done once all that was enqueued is, on all ranks, and no graph holds calls any more: the real one
// waits for that in ncclCommDestroy.
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t code = fault("ncclCommFinalize")) return code;
  if (const ncclResult_t code = usable(comm, "ncclCommFinalize")) return code;
  const auto request = std::make_shared<MPI_Request>(MPI_REQUEST_NULL);
  const auto met = std::make_shared<bool>(false);
  comm->finalized = true;
  return in_background(comm, [comm, request, met] {
    if (!*met && comm->uses.use_count() > 1) {
      emulation::progress();
      return false;
    }
    if (!*met) MPI_Ibarrier(comm->mpi, request.get());
    *met = true;
    return is_done(*request);
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (const ncclResult_t code = fault("ncclCommDestroy")) return code;
  if (!is_live(comm)) return misuse(nullptr, "ncclCommDestroy: no such communicator");
  if (!comm->finalized || comm->background || comm->polls_left > 0) {
    return misuse(comm, "ncclCommDestroy: not finalized");
  }
  {
    const std::lock_guard lock(registry);
    live_comms.erase(comm);
  }
  MPI_Comm_free(&comm->mpi);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(registry);
  if (live_comms.erase(comm) == 0) return ncclInvalidArgument;
  aborted_before.insert(comm);
  comm->aborted = true;
  return ncclSuccess;
}

}  // extern "C"
