// ControlChannel over MPI, on a communicator of its own. Every rank exchanges directly with every
// other, so that each knows for itself who is missing: what it carries is small or rare.
#pragma once

#include <mpi.h>

#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/control.hpp"
#include "parallel/comm/mpi_wait.hpp"

namespace testbed {

class MpiControl final : public ControlChannel {
 public:
  MpiControl(std::vector<std::string> hosts, const MpiWaiting& waiting);
  ~MpiControl() override;
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hosts_.size()); }
  std::string host() const override { return hosts_[static_cast<size_t>(rank_)]; }
  Bytes broadcast(Bytes from_root, int root) override;
  std::vector<Bytes> gather(Bytes mine, int root) override;
  std::vector<Bytes> all_gather(Bytes mine) override;
  void barrier() override;
  void post(Bytes message, int target) override;
  Bytes receive(int source) override;

 private:
  struct Posted {
    uint64_t length = 0;
    Bytes message;
    MpiRequests requests;
  };
  std::vector<int> others() const;
  std::vector<Bytes> exchange(Bytes mine, std::string_view op);
  std::vector<Bytes> receive_from(const std::vector<int>& sources, std::string_view op);
  void wait(MpiRequests& requests, std::string_view op);
  void forget_sent();

  std::vector<std::string> hosts_;
  MpiWaiting waiting_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::list<Posted> posted_;  // on their way; buffers must stay where they are
};

}  // namespace testbed
