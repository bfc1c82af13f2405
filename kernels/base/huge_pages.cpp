#include "kernels/base/huge_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace testbed {
namespace {

constexpr size_t line = 64;
constexpr size_t huge_page = size_t{2} << 20;
constexpr size_t chunk_bytes = size_t{64} << 20;

// So that reads beyond a tensor's end are seen.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool each_on_its_own = true;
#else
constexpr bool each_on_its_own = false;
#endif

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// Pages that pieces are cut from, front to back; none is cut twice.
class Chunk {
 public:
  explicit Chunk(size_t n_bytes) : n_mapped_(n_bytes + huge_page) {
    mapped_ = mmap(nullptr,
                   n_mapped_,
                   PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1,
                   0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    void* first = mapped_;
    n_free_ = n_mapped_;
    std::align(huge_page, n_bytes, first, n_free_);
    next_ = static_cast<std::byte*>(first);
    n_free_ = n_bytes;
    madvise(first, n_bytes, MADV_HUGEPAGE);
  }
  ~Chunk() { munmap(mapped_, n_mapped_); }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  // nullptr: not as much is left.
  std::byte* cut(size_t n_bytes) {
    if (n_bytes > n_free_) return nullptr;
    n_free_ -= n_bytes;
    return std::exchange(next_, next_ + n_bytes);
  }

 private:
  void* mapped_;
  size_t n_mapped_;
  std::byte* next_;
  size_t n_free_;
};

// Before each piece stands its chunk, which lives as long as one of its pieces.
using Owner = std::shared_ptr<Chunk>;
static_assert(sizeof(Owner) <= line);

void* take(size_t n_bytes) {
  static std::mutex mutex;
  static Owner current;
  // Vectors may be read up to a line beyond the end.
  const size_t wanted = line + round_up(n_bytes, line) + line;
  const std::lock_guard lock(mutex);
  std::byte* piece = current ? current->cut(wanted) : nullptr;
  if (piece == nullptr) {
    current = std::make_shared<Chunk>(std::max(chunk_bytes, round_up(wanted, huge_page)));
    piece = current->cut(wanted);
  }
  new (piece) Owner(current);
  return piece + line;
}

void give_back(void* data) {
  std::launder(reinterpret_cast<Owner*>(static_cast<std::byte*>(data) - line))->~Owner();
}

}  // namespace

Tensor in_huge_pages(DType dtype, Shape shape) {
  if constexpr (each_on_its_own) return {dtype, shape};
  const auto n_bytes = static_cast<size_t>(dtype_bytes(dtype, shape.n_elements()));
  return {take(n_bytes), dtype, shape, give_back};
}

}  // namespace testbed
