#include "parallel/comm/shm_segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/clock.hpp"
#include "kernels/base/hash.hpp"
#include "parallel/comm/gather_values.hpp"

namespace testbed {
namespace {

std::string failed(const std::string& call, int code) {
  return fmt::format("{}: {}", call, std::strerror(code));
}

// Where rank 0's file is, and what it begins with: another process may have that id in another
// container.
struct Place {
  int32_t pid = 0;
  int32_t fd = -1;
  uint64_t token = 0;
};

}  // namespace

ShmSegment::~ShmSegment() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(n_bytes_));
  if (fd_ >= 0) close(fd_);
}

std::string ShmSegment::reserve(int fd, int64_t n_bytes) {
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  int code = EFBIG;  // else the kernel would say so by a signal that ends the process
  if (limit.rlim_cur >= static_cast<rlim_t>(n_bytes)) {
    do {
      code = posix_fallocate(fd, 0, n_bytes);
    } while (code == EINTR);
  }
  return code == 0 ? "" : failed(fmt::format("{} bytes of shared memory", n_bytes), code);
}

std::string ShmSegment::create() {
  fd_ = memfd_create("testbed", MFD_CLOEXEC);
  if (fd_ < 0) return failed("memfd_create", errno);
  if (std::string why_not = reserve(fd_, n_bytes_); !why_not.empty()) return why_not;
  return map();
}

std::string ShmSegment::open(int pid, int fd) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  return fd_ < 0 ? failed("open " + path, errno) : map();
}

std::string ShmSegment::map() {
  void* const at =
      mmap(nullptr, static_cast<size_t>(n_bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) return failed("mmap", errno);
  data_ = static_cast<std::byte*>(at);
  return "";
}

ShmSegment::Made ShmSegment::make(Communicator& group, int64_t n_bytes) {
  std::unique_ptr<ShmSegment> segment(new ShmSegment(n_bytes));
  std::string mine;
  Place place{.pid = getpid()};
  if (group.rank() == 0) {
    mine = segment->create();
    place.fd = segment->fd_;
    place.token = mix64(static_cast<uint64_t>(now_ns()) ^ static_cast<uint64_t>(getpid()) << 40);
    if (segment->data_ != nullptr) std::memcpy(segment->data_, &place.token, sizeof place.token);
  }
  std::string why_not = agreed_reason(group, mine);
  if (!why_not.empty()) return {nullptr, std::move(why_not)};
  place = gather_values(group, place).front();
  if (group.rank() != 0) {
    mine = segment->open(place.pid, place.fd);
    if (mine.empty() && std::memcmp(segment->data_, &place.token, sizeof place.token) != 0) {
      mine = "another process has the id of rank 0";
    }
  }
  why_not = agreed_reason(group, mine);
  if (!why_not.empty()) return {nullptr, std::move(why_not)};
  if (group.rank() == 0) std::memset(segment->data_, 0, sizeof place.token);
  close(segment->fd_);  // all have it mapped
  segment->fd_ = -1;
  group.barrier();
  return {std::move(segment), ""};
}

}  // namespace testbed
