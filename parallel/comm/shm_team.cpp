#include "parallel/comm/shm_team.hpp"

#include <algorithm>

#include "parallel/comm/missing_ranks.hpp"
#include "parallel/comm/shm_wait.hpp"

namespace testbed {

// So small that what one rank writes is still in its second-level cache when others read it; of
// many ranks smaller, so that all of them together are.
int64_t ShmTeam::buffer_bytes(int size) {
  constexpr int64_t most = int64_t{256} << 10;
  constexpr int64_t least = int64_t{16} << 10;
  constexpr int64_t of_all_ranks = int64_t{2} << 20;
  constexpr int64_t page = 4096;
  return std::clamp(of_all_ranks / size / page * page, least, most);
}

int64_t ShmTeam::segment_bytes(int size) {
  return int64_t{size} * (static_cast<int64_t>(sizeof(Flag)) + n_buffers * buffer_bytes(size));
}

ShmTeam::ShmTeam(const GroupInfo& group,
                 const std::vector<std::string>& hosts,
                 const MpiWaiting& waiting,
                 std::byte* memory)
    : group_(group),
      hosts_(hosts),
      waiting_(waiting),
      flags_(reinterpret_cast<Flag*>(memory)),
      buffers_(memory + int64_t{group.size} * static_cast<int64_t>(sizeof(Flag))),
      buffer_bytes_(buffer_bytes(group.size)) {}

int ShmTeam::take(std::string_view op) {
  const int index = next_;
  next_ = (next_ + 1) % n_buffers;
  const uint64_t free_at = free_at_[static_cast<size_t>(index)];
  CHECK(free_at <= count_);  // else all would wait for all
  wait_for_all(free_at, op);
  return index;
}

std::byte* ShmTeam::buffer(int rank, int index) const {
  return buffers_ + (int64_t{rank} * n_buffers + index) * buffer_bytes_;
}

uint64_t ShmTeam::publish() {
  flags_[group_.rank].count.store(++count_, std::memory_order_release);
  return count_;
}

uint64_t ShmTeam::publish(const ShmHeap::Place& place) {
  flags_[group_.rank].place = place;
  return publish();
}

void ShmTeam::wait_for_all(uint64_t count, std::string_view op) {
  int next = 0;  // those before it have come
  wait_until(
      waiting_,
      [&] {
        while (next < group_.size && has_come(next, count)) ++next;
        return next == group_.size;
      },
      [&] { return missing(count, op); });
}

void ShmTeam::wait_for(int rank, uint64_t count, std::string_view op) {
  wait_until(
      waiting_,
      [&] { return has_come(rank, count); },
      [&] { return has_come(rank, count) ? "" : missing(count, op); });
}

std::string ShmTeam::missing(uint64_t count, std::string_view op) const {
  std::vector<int> peers;
  peers.reserve(static_cast<size_t>(group_.size));
  for (int r = 0; r < group_.size; ++r) {
    if (!has_come(r, count)) peers.push_back(r);
  }
  if (peers.empty()) return "";
  return missing_ranks(group_, hosts_, op, peers, waiting_.deadline_s, waiting_.whereabouts);
}

}  // namespace testbed
