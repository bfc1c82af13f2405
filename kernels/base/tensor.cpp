#include "kernels/base/tensor.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace testbed {

Tensor::Tensor(DType dtype, Shape shape) : dtype_(dtype), shape_(shape) {
  constexpr size_t huge_page = size_t{2} << 20;
  const auto n_bytes = static_cast<size_t>(dtype_bytes(dtype, shape.n_elements()));
  const size_t padded = (n_bytes + 63) / 64 * 64 + 64;
  const bool huge = n_bytes >= huge_page;
  void* data = nullptr;
  if (posix_memalign(&data, huge ? huge_page : 64, padded) != 0) throw std::bad_alloc();
  data_ = {data, Free{&std::free}};
  // A hint, before the first touch; without huge pages the tensor is only slower.
  if (huge) madvise(data, padded, MADV_HUGEPAGE);
  std::memset(data_.get(), 0, padded);
}

}  // namespace testbed
