// The NCCL stand-in's operations and groups of them.
#include <limits>
#include <utility>

#include "tests/cuda_emulation/emulation.hpp"
#include "tests/cuda_emulation/nccl.hpp"

namespace emulation::nccl {
namespace {

// Of a group that is open: what each communicator has to do, in the order of first use.
struct Grouped {
  ncclComm* comm;
  cudaStream_t stream;
  std::vector<Transfer> transfers;
};
int depth = 0;
bool failed_in_group = false;  // nothing of the group is done then
std::vector<Grouped> grouped;

ncclResult_t fault(const char* call) {
  const std::optional<int> code = inject(call, ncclSystemError);
  return code ? static_cast<ncclResult_t>(*code) : ncclSuccess;
}

ncclResult_t put(ncclComm* comm, cudaStream_t stream, std::function<bool()> work) {
  if (enqueue(stream, std::move(work)) != cudaSuccess) {
    comm->last_error = "the stream takes no work";
    return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

ncclResult_t check_memory(ncclComm* comm, const char* call, const void* p, int64_t n_bytes) {
  if (n_bytes == 0 || is_device_memory(p, static_cast<size_t>(n_bytes))) return ncclSuccess;
  return misuse(
      comm,
      std::string(call) + ": " + std::to_string(n_bytes) + " bytes that are not device memory");
}

ncclResult_t start_collective(ncclComm* comm,
                              cudaStream_t stream,
                              const CollectiveCall& call,
                              int64_t from_parts,
                              int64_t into_parts) {
  if (const ncclResult_t code = fault(call.name); code != ncclSuccess) return code;
  if (const ncclResult_t code = usable(comm, call.name); code != ncclSuccess) return code;
  const int64_t n_bytes = call.count * type_bytes(call.type);
  const bool sums = call.kind != Collective::all_gather;
  if (type_bytes(call.type) == 0 || (sums && call.type == ncclUint8)) {
    return misuse(comm, std::string(call.name) + ": a type that the stand-in does not know");
  }
  if (n_bytes > std::numeric_limits<int>::max())
    return misuse(comm, "more than the stand-in sends");
  if (depth > 0) return misuse(comm, "the stand-in groups sends and receives only");
  if (const ncclResult_t code = check_memory(comm, call.name, call.from, from_parts * n_bytes)) {
    return code;
  }
  if (const ncclResult_t code = check_memory(comm, call.name, call.into, into_parts * n_bytes)) {
    return code;
  }
  if (const ncclResult_t code = put(comm, stream, collective(comm, call))) return code;
  return in_background(comm, {});
}

ncclResult_t flush() {
  ncclResult_t result = ncclSuccess;
  for (Grouped& group : grouped) {
    if (const ncclResult_t code =
            put(group.comm, group.stream, transfers(group.comm, std::move(group.transfers)))) {
      result = code;
    } else if (result == ncclSuccess) {
      result = in_background(group.comm, {});
    }
  }
  grouped.clear();
  return result;
}

ncclResult_t try_transfer(const char* call,
                          ncclComm* comm,
                          cudaStream_t stream,
                          ncclDataType_t type,
                          size_t count,
                          Transfer transfer) {
  if (const ncclResult_t code = fault(call)) return code;
  if (const ncclResult_t code = usable(comm, call)) return code;
  transfer.n_bytes = static_cast<int64_t>(count) * type_bytes(type);
  if (type_bytes(type) == 0) return misuse(comm, "a type that the stand-in does not know");
  if (transfer.n_bytes > std::numeric_limits<int>::max()) {
    return misuse(comm, "more than the stand-in sends");
  }
  if (transfer.peer < 0 || transfer.peer >= comm->size)
    return misuse(comm, std::string(call) + ": no such peer");
  if (const ncclResult_t code = check_memory(comm, call, transfer.data, transfer.n_bytes))
    return code;
  for (Grouped& group : grouped) {
    if (group.comm != comm) continue;
    if (group.stream != stream) return misuse(comm, "one stream for a communicator's group");
    group.transfers.push_back(transfer);
    return ncclSuccess;
  }
  grouped.push_back({comm, stream, {transfer}});
  return depth > 0 ? ncclSuccess : flush();
}

ncclResult_t add_transfer(const char* call,
                          ncclComm* comm,
                          cudaStream_t stream,
                          ncclDataType_t type,
                          size_t count,
                          Transfer transfer) {
  const ncclResult_t code = try_transfer(call, comm, stream, type, count, transfer);
  failed_in_group |= depth > 0 && code != ncclSuccess;
  return code;
}

}  // namespace
}  // namespace emulation::nccl

using emulation::nccl::Collective;

extern "C" {

ncclResult_t ncclAllReduce(const void* from,
                           void* into,
                           size_t count,
                           ncclDataType_t type,
                           ncclRedOp_t op,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  if (op != ncclSum) return emulation::nccl::misuse(comm, "only sums");
  return emulation::nccl::start_collective(
      comm,
      stream,
      {"ncclAllReduce", Collective::all_reduce, from, into, static_cast<int64_t>(count), type},
      1,
      1);
}

ncclResult_t ncclAllGather(const void* from,
                           void* into,
                           size_t count,
                           ncclDataType_t type,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return emulation::nccl::start_collective(
      comm,
      stream,
      {"ncclAllGather", Collective::all_gather, from, into, static_cast<int64_t>(count), type},
      1,
      comm == nullptr ? 1 : comm->size);
}

ncclResult_t ncclReduceScatter(const void* from,
                               void* into,
                               size_t count,
                               ncclDataType_t type,
                               ncclRedOp_t op,
                               ncclComm_t comm,
                               cudaStream_t stream) {
  if (op != ncclSum) return emulation::nccl::misuse(comm, "only sums");
  return emulation::nccl::start_collective(comm,
                                           stream,
                                           {"ncclReduceScatter",
                                            Collective::reduce_scatter,
                                            from,
                                            into,
                                            static_cast<int64_t>(count),
                                            type},
                                           comm == nullptr ? 1 : comm->size,
                                           1);
}

ncclResult_t ncclSend(const void* from,
                      size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  return emulation::nccl::add_transfer(
      "ncclSend", comm, stream, type, count, {true, const_cast<void*>(from), 0, peer});
}

ncclResult_t ncclRecv(
    void* into, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return emulation::nccl::add_transfer(
      "ncclRecv", comm, stream, type, count, {false, into, 0, peer});
}

ncclResult_t ncclGroupStart() {
  if (const ncclResult_t code = emulation::nccl::fault("ncclGroupStart")) return code;
  ++emulation::nccl::depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (emulation::nccl::depth == 0) return ncclInvalidUsage;
  --emulation::nccl::depth;
  ncclResult_t code = emulation::nccl::fault("ncclGroupEnd");
  if (std::exchange(emulation::nccl::failed_in_group, false)) code = ncclInvalidUsage;
  if (code != ncclSuccess) emulation::nccl::grouped.clear();
  if (code != ncclSuccess || emulation::nccl::depth > 0) return code;
  return emulation::nccl::flush();
}

void ncclResetDebugInit() {}  // there is no log

}  // extern "C"
