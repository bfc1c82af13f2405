// Pages of allocations: what lies beyond their ends faults, fresh memory is NaN in every dtype.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/cuda_emulation/memory.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace emulation {
namespace {

constexpr size_t page_bytes = 4096;
constexpr size_t alignment = 256;  // of an allocation's start
constexpr auto fresh = std::byte{0xff};
constexpr auto padding = std::byte{0xa5};

constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// A file full of the bytes of fresh memory: large allocations map it again and again, privately, so
// that only what is written takes memory.
constexpr size_t pattern_bytes = size_t{4} << 20;
int pattern_file() {
  static const int fd = [] {
    const int made = memfd_create("emulated-fresh-memory", MFD_CLOEXEC);
    if (made < 0 || ftruncate(made, pattern_bytes) != 0) return -1;
    void* p = mmap(nullptr, pattern_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
    if (p == MAP_FAILED) return -1;
    std::memset(p, static_cast<int>(fresh), pattern_bytes);
    munmap(p, pattern_bytes);
    return made;
  }();
  return fd;
}

bool map_fresh(std::byte* at, size_t n_bytes) {
  constexpr int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
  if (n_bytes <= pattern_bytes) {
    if (mmap(at, n_bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) {
      return false;
    }
    std::fill_n(at, n_bytes, fresh);
    return true;
  }
  for (size_t done = 0; done < n_bytes; done += pattern_bytes) {
    const size_t n = std::min(pattern_bytes, n_bytes - done);
    if (mmap(at + done, n, PROT_READ | PROT_WRITE, flags, pattern_file(), 0) == MAP_FAILED) {
      return false;
    }
  }
  return true;
}

std::byte* end_of_pages(const Range& r) { return r.mapping + r.mapping_bytes - page_bytes; }
// From the allocation's end to the end of its pages.
std::byte* padding_of(const Range& r) { return r.start + r.n_bytes; }

void poison_padding([[maybe_unused]] const Range& r) {
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(padding_of(r), static_cast<size_t>(end_of_pages(r) - padding_of(r)));
#endif
}
void unpoison([[maybe_unused]] const Range& r) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(r.mapping, r.mapping_bytes);
#endif
}

}  // namespace

bool map_range(Range& range, size_t n_bytes, int fd) {
  const size_t pages = round_up(n_bytes, page_bytes);
  range.mapping_bytes = pages + page_bytes;
  void* p = mmap(
      nullptr, range.mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  range.mapping = static_cast<std::byte*>(p);
  range.n_bytes = n_bytes;
  range.start = end_of_pages(range) - round_up(n_bytes, alignment);
  range.fd = fd;
  unpoison(range);  // what was mapped here before
  const bool mapped =
      fd < 0 ? map_fresh(range.mapping, pages)
             : mmap(p, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
  if (!mapped) {
    munmap(p, range.mapping_bytes);
    return false;
  }
  if (fd < 0) std::fill(padding_of(range), end_of_pages(range), padding);
  poison_padding(range);
  return true;
}

bool padding_is_whole(const Range& range) {
  unpoison(range);
  return std::all_of(
      padding_of(range), end_of_pages(range), [](std::byte b) { return b == padding; });
}

void unmap_range(const Range& range) {
  unpoison(range);
  munmap(range.mapping, range.mapping_bytes);
  if (range.fd >= 0) close(range.fd);
}

bool share_range(Range& range) {
  const size_t pages = range.mapping_bytes - page_bytes;
  const int fd = memfd_create("emulated-device-memory", MFD_CLOEXEC);
  if (fd < 0) return false;
  unpoison(range);
  size_t written = 0;
  while (written < pages) {
    const ssize_t n = write(fd, range.mapping + written, pages - written);
    if (n <= 0) break;
    written += static_cast<size_t>(n);
  }
  if (written < pages ||
      mmap(range.mapping, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
          MAP_FAILED) {
    close(fd);
    return false;
  }
  range.fd = fd;
  poison_padding(range);
  return true;
}

}  // namespace emulation
