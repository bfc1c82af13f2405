#include "parallel/comm/nccl_world.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

// Made by rank 0, to whom the others connect.
ncclUniqueId agree_on_id(int rank, ControlChannel& control) {
  ncclUniqueId id{};
  std::optional<std::string> error;
  if (rank == 0) {
    try {
      check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    } catch (const CommError& e) {
      error = e.what();
    }
  }
  control.agree(error);
  const auto* begin = reinterpret_cast<const std::byte*>(id.internal);
  const Bytes bytes = control.broadcast(Bytes(begin, begin + sizeof id.internal), 0);
  CHECK(bytes.size() == sizeof id.internal);
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

// The name appears in NCCL's debug log; it keeps the pointer.
ncclConfig_t non_blocking(Axis axis) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = axis_name(axis).data();
  return config;
}

}  // namespace

NcclWorld::NcclWorld(const MpiWorld& world,
                     ControlChannel& control,
                     cuda::Queue& queue,
                     const Clock& clock,
                     double deadline_s)
    : queue_(queue), clock_(clock), comms_(world.hosts(), deadline_s) {
  control.barrier();  // names the ranks that have not come, which NCCL would wait for
  if (world.size() > 1) init(world.rank(), world.size(), control);
  watcher_ = queue_.add_watcher([this](double waited_s) { comms_.watch(waited_s); });
}

NcclWorld::~NcclWorld() {
  queue_.remove_watcher(watcher_);
  if (world_ != nullptr) comms_.release(*world_);
}

void NcclWorld::init(int rank, int size, ControlChannel& control) {
  const ncclUniqueId id = agree_on_id(rank, control);
  world_ = &comms_.add(fmt::format("the world of {} ranks", size));
  ncclConfig_t config = non_blocking(Axis::world);
  comms_.note(*world_, "ncclCommInitRankConfig");
  const ncclResult_t result = ncclCommInitRankConfig(&world_->handle, size, id, rank, &config);
  comms_.settle(*world_, "ncclCommInitRankConfig", result);
}

NcclComm& NcclWorld::split(const GroupInfo& group) {
  NcclComm& comm = comms_.add(
      fmt::format("{} group {{{}}}", axis_name(group.axis), fmt::join(group.world_ranks, ",")));
  ncclConfig_t config = non_blocking(group.axis);
  const int color = *std::min_element(group.world_ranks.begin(), group.world_ranks.end());
  comms_.note(comm, "ncclCommSplit");
  const ncclResult_t result =
      ncclCommSplit(world_->handle, color, group.rank, &comm.handle, &config);
  // Gives the new handle, which may not be ready.
  comms_.settle(*world_, fmt::format("ncclCommSplit for {}", comm.group), result);
  comms_.settle(comm, "ncclCommSplit", ncclInProgress);
  return comm;
}

std::unique_ptr<NcclCommunicator> NcclWorld::make_group(Communicator& host, bool messages) {
  const GroupInfo& group = host.group();
  int n_comms = messages ? nccl_message_lanes(group.size) : 1;
  if (group.size == 1) n_comms = 0;
  std::vector<NcclComm*> comms;
  comms.reserve(static_cast<size_t>(n_comms));
  for (int i = 0; i < n_comms; ++i) comms.push_back(&split(group));
  return std::make_unique<NcclCommunicator>(host, queue_, clock_, comms);
}

std::unique_ptr<NcclCommunicator> NcclWorld::make_uneven_group(Communicator& host) {
  std::vector<NcclComm*> comms;
  if (world_ != nullptr) comms.push_back(&split(host.group()));
  if (host.size() == 1 && !comms.empty()) {  // it took part in the split, and has no use for it
    comms_.release(*comms.front());
    comms.clear();
  }
  return std::make_unique<NcclCommunicator>(host, queue_, clock_, comms);
}

}  // namespace testbed
