#include "parallel/comm/shm_heap.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>

#include "kernels/base/check.hpp"
#include "kernels/base/errors.hpp"
#include "parallel/comm/shm_segment.hpp"

namespace testbed {
namespace {

constexpr int64_t page = 4096;  // before the data: which allocation it is

void* map_file(int fd, size_t n_bytes) {
  return mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
}

}  // namespace

Tensor ShmHeap::allocate(DType dtype, Shape shape) {
  const int64_t n_bytes = page + dtype_bytes(dtype, shape.n_elements());
  const int fd = memfd_create("testbed", MFD_CLOEXEC);
  if (fd < 0) return {dtype, shape};
  void* const at = ShmSegment::reserve(fd, n_bytes).empty()
                       ? map_file(fd, static_cast<size_t>(n_bytes))
                       : MAP_FAILED;
  if (at == MAP_FAILED) {
    close(fd);
    return {dtype, shape};
  }
  const Allocation allocation{this, n_bytes, ++n_allocated_, fd};
  new (at) Allocation(allocation);
  auto* const data = static_cast<std::byte*>(at) + page;
  allocations_.emplace(data, allocation);
  return {data, dtype, shape, ShmHeap::free};
}

void ShmHeap::free(void* data) {
  auto* const begin = static_cast<std::byte*>(data) - page;
  const Allocation allocation = *std::launder(reinterpret_cast<Allocation*>(begin));
  allocation.heap->allocations_.erase(static_cast<const std::byte*>(data));
  munmap(begin, static_cast<size_t>(allocation.n_bytes));
  // Others keep it mapped while their groups live. Whole pages, or the last would stay.
  const int64_t whole = (allocation.n_bytes + page - 1) / page * page;
  fallocate(allocation.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, whole);
  close(allocation.fd);
}

ShmHeap::Place ShmHeap::find(const void* data) const {
  const auto* const address = static_cast<const std::byte*>(data);
  const auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return {};
  const auto& [begin, allocation] = *std::prev(after);
  if (address >= begin + allocation.n_bytes - page) return {};
  return {allocation.number, allocation.fd, address - begin + page};
}

ShmPeerHeaps::~ShmPeerHeaps() {
  for (const auto& [key, mapped] : mapped_) munmap(mapped.data, mapped.n_bytes);
}

std::byte* ShmPeerHeaps::at(int rank, const ShmHeap::Place& place) {
  Mapped& mapped = mapped_[{rank, place.number}];
  if (mapped.data == nullptr) {
    const std::string path =
        fmt::format("/proc/{}/fd/{}", pids_[static_cast<size_t>(rank)], place.fd);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat status {};
    const bool opened = fd >= 0 && fstat(fd, &status) == 0;
    const auto n_bytes = static_cast<size_t>(status.st_size);
    void* const data = opened ? map_file(fd, n_bytes) : MAP_FAILED;
    const int code = errno;
    if (fd >= 0) close(fd);
    if (data == MAP_FAILED) {
      throw CommError(fmt::format("memory of rank {} ({}): {}", rank, path, std::strerror(code)));
    }
    mapped = {static_cast<std::byte*>(data), n_bytes};
  }
  return mapped.data + place.offset;
}

}  // namespace testbed
