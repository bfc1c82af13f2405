// ShmSegment: memory that the ranks of a group on one host share. It has no name in the file
// system, so that none can be left behind: rank 0 makes an anonymous file, the others open it
// through /proc, and it is gone with the last process that has it mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "parallel/comm/communicator.hpp"

namespace testbed {

class ShmSegment {
 public:
  // The ranks of the group call it together. nullptr, with the same reason on all ranks, where it
  // cannot be had: the memory is all there, or it is not made (no SIGBUS later).
  struct Made {
    std::unique_ptr<ShmSegment> segment;
    std::string why_not;
  };
  static Made make(Communicator& group, int64_t n_bytes);
  // Gives an anonymous file all of its memory; "", or why it cannot be had.
  static std::string reserve(int fd, int64_t n_bytes);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  std::byte* data() const { return data_; }  // zeros at first; aligned to a page

 private:
  explicit ShmSegment(int64_t n_bytes) : n_bytes_(n_bytes) {}
  std::string create();
  std::string open(int pid, int fd);
  std::string map();

  std::byte* data_ = nullptr;
  int64_t n_bytes_;
  int fd_ = -1;
};

}  // namespace testbed
