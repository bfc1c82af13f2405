// OpBoard: what each rank of this host is at, for the moment in which one does not come. The ranks'
// rows are in memory that they share; where that cannot be had, each sees only its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/op_row.hpp"
#include "parallel/comm/shm_segment.hpp"

namespace testbed {

class OpBoard {
 public:
  // The ranks of one host together: `local` joins them and is only used meanwhile.
  explicit OpBoard(Communicator& local);

  OpRow& mine() const { return *mine_; }
  // Where those of these world ranks are that can be seen from here, as the end of a sentence:
  // "; rank 2 (stopped) has been done with barrier 4 on tp {2,3} for 31.2 s". "" if none can.
  std::string whereabouts(const std::vector<int>& world_ranks) const;
  // The message that this rank waits for, or has waited for in vain; nullopt: for none.
  std::optional<OpRow::Operation> awaited_message() const;
  // Of all ranks of this host, a line each: which have arrived where this rank waits, which have
  // not, and what each did last.
  std::string report() const;
  // "rank 2" whose process was seen by an earlier call and is no more; "" if there is none. Rank 0
  // looks at all of its host, the others at rank 0: of ranks that end because they have seen one
  // end, none is to be taken for the first. For one thread.
  std::string ended();

 private:
  const OpRow* row(int world_rank) const;
  std::string where(int world_rank) const;

  std::unique_ptr<ShmSegment> segment_;
  std::unique_ptr<OpRow> own_;  // if nothing is shared
  OpRow* mine_ = nullptr;
  int rank_ = 0;                  // of the world
  std::vector<int> world_ranks_;  // whose rows are seen, in order
  OpRow* rows_ = nullptr;
  std::vector<bool> seen_;  // [world_ranks_] by ended(): in containers of their own they may not be
};

}  // namespace testbed
