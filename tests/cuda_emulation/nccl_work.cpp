// What the NCCL stand-in's operations do once their stream comes to them.
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "parallel/comm/ordered_sum.hpp"
#include "tests/cuda_emulation/nccl.hpp"

namespace emulation::nccl {
namespace {

constexpr int tag = 1;

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

struct Hang {
  std::string name;
  int64_t number = 0;
  int rank = 0;
};

std::optional<Hang> wanted_hang() {
  const char* text = std::getenv("TESTBED_EMULATION_HANG");
  if (text == nullptr) return std::nullopt;
  const std::string all = text;
  const size_t colon = all.find(':');
  const size_t at = all.find('@');
  if (colon == std::string::npos || at == std::string::npos) return std::nullopt;
  return Hang{
      all.substr(0, colon), std::atoll(all.c_str() + colon + 1), std::atoi(all.c_str() + at + 1)};
}

bool is_done(MPI_Request& request, MPI_Status* status = MPI_STATUS_IGNORE) {
  int done = 0;
  return MPI_Test(&request, &done, status) == MPI_SUCCESS && done != 0;
}

testbed::DType summed_type(ncclDataType_t type) {
  return type == ncclFloat32 ? testbed::DType::F32 : testbed::DType::BF16;
}

// Work that has begun. An item is copied for each launch of a graph before it begins, and holds
// this only from then on.
class Running {
 public:
  virtual ~Running() = default;
  virtual bool test() = 0;
};

class RunningTransfers final : public Running {
 public:
  RunningTransfers(ncclComm* comm, const std::vector<Transfer>& all)
      : comm_(comm), all_(all), requests_(all.size(), MPI_REQUEST_NULL), done_(all.size()) {
    for (size_t i = 0; i < all_.size(); ++i) {
      const Transfer& t = all_[i];
      hangs_ |= hangs(t.is_send ? "ncclSend" : "ncclRecv");
      if (hangs_) return;
      const auto n = static_cast<int>(t.n_bytes);
      if (t.is_send) {
        MPI_Issend(t.data, n, MPI_BYTE, t.peer, tag, comm_->mpi, &requests_[i]);
      } else {
        MPI_Irecv(t.data, n, MPI_BYTE, t.peer, tag, comm_->mpi, &requests_[i]);
      }
    }
  }
  bool test() override {
    bool all = !hangs_;
    for (size_t i = 0; i < all_.size() && !hangs_; ++i) {
      if (!done_[i]) done_[i] = test(i);
      all = all && done_[i];
    }
    return all;
  }

 private:
  bool test(size_t i) {
    MPI_Status status{};
    int done = 0;
    const int code = MPI_Test(&requests_[i], &done, &status);
    if (code == MPI_SUCCESS && done == 0) return false;
    int n = 0;
    MPI_Get_count(&status, MPI_BYTE, &n);
    if (code != MPI_SUCCESS || (!all_[i].is_send && n != all_[i].n_bytes)) {
      comm_->error =
          misuse(comm_,
                 "a receive of " + std::to_string(all_[i].n_bytes) + " bytes from rank " +
                     std::to_string(all_[i].peer) + " met a send of another length");
      hangs_ = true;
    }
    return true;
  }
  ncclComm* comm_;
  std::vector<Transfer> all_;
  std::vector<MPI_Request> requests_;
  std::vector<bool> done_;
  bool hangs_ = false;
};

// First all ranks compare what they call, then the data goes round.
class RunningCollective final : public Running {
 public:
  RunningCollective(ncclComm* comm, const CollectiveCall& call)
      : comm_(comm),
        call_(call),
        n_bytes_(call.count * type_bytes(call.type)),
        hangs_(hangs(call.name)) {
    if (hangs_) return;
    mine_[0] = static_cast<int64_t>(call.kind);
    mine_[1] = call.count;
    mine_[2] = call.type;
    all_.resize(static_cast<size_t>(comm->size) * std::size(mine_));
    const int n = static_cast<int>(std::size(mine_));
    MPI_Iallgather(mine_, n, MPI_INT64_T, all_.data(), n, MPI_INT64_T, comm->mpi, &request_);
  }
  bool test() override {
    if (hangs_ || !is_done(request_)) return false;
    if (compared_) {
      deliver();
      return true;
    }
    compared_ = true;
    for (size_t i = 0; i < all_.size(); ++i) {
      if (all_[i] == mine_[i % std::size(mine_)]) continue;
      comm_->error = misuse(comm_, std::string(call_.name) + ": ranks disagree on what they call");
      hangs_ = true;
      return false;
    }
    exchange();
    return false;
  }

 private:
  void exchange() {
    const bool scatters = call_.kind == Collective::reduce_scatter;
    const auto* from = static_cast<const std::byte*>(call_.from);
    sent_.assign(from, from + (scatters ? comm_->size : 1) * n_bytes_);
    received_.resize(static_cast<size_t>(comm_->size * n_bytes_));
    const auto n = static_cast<int>(n_bytes_);
    if (scatters) {
      MPI_Ialltoall(
          sent_.data(), n, MPI_BYTE, received_.data(), n, MPI_BYTE, comm_->mpi, &request_);
    } else {
      MPI_Iallgather(
          sent_.data(), n, MPI_BYTE, received_.data(), n, MPI_BYTE, comm_->mpi, &request_);
    }
  }
  void deliver() {
    if (n_bytes_ == 0) return;
    if (call_.kind == Collective::all_gather) {
      std::memcpy(call_.into, received_.data(), received_.size());
      return;
    }
    std::vector<const void*> parts;
    for (int r = 0; r < comm_->size; ++r) parts.push_back(received_.data() + r * n_bytes_);
    testbed::sum_in_order(parts, call_.into, call_.count, summed_type(call_.type));
  }
  ncclComm* comm_;
  CollectiveCall call_;
  int64_t n_bytes_;  // of one rank's part
  bool hangs_;
  bool compared_ = false;
  int64_t mine_[3] = {};
  std::vector<int64_t> all_;
  std::vector<std::byte> sent_;
  std::vector<std::byte> received_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

template <typename Started, typename What>
std::function<bool()> item(ncclComm* comm, const What& what) {
  return [comm, what, use = comm->uses, running = std::shared_ptr<Running>()]() mutable {
    if (comm->aborted) return true;
    if (comm->error != ncclSuccess) return false;
    if (!running) running = std::make_shared<Started>(comm, what);
    return running->test();
  };
}

}  // namespace

bool hangs(const std::string& name) {
  static std::map<std::string, int64_t> n_begun;
  const int64_t number = ++n_begun[name];
  const std::optional<Hang> hang = wanted_hang();
  return hang && hang->name == name && hang->number == number && hang->rank == world_rank();
}

int64_t type_bytes(ncclDataType_t type) {
  if (type == ncclFloat32) return 4;
  if (type == ncclBfloat16) return 2;
  return type == ncclUint8 ? 1 : 0;
}

std::function<bool()> transfers(ncclComm* comm, std::vector<Transfer> transfers) {
  return item<RunningTransfers>(comm, transfers);
}
std::function<bool()> collective(ncclComm* comm, const CollectiveCall& call) {
  return item<RunningCollective>(comm, call);
}

}  // namespace emulation::nccl
