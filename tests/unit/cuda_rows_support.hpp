// What the tests of kernels/cuda/rows.hpp share: tensors on the (emulated) device, and comparisons
// with the CPU's readable loops.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/rows.hpp"
#include "tests/unit/cuda_copies.hpp"
#include "tests/unit/elementwise_support.hpp"

namespace testbed::cuda {

using cpu::at;
using cpu::dtypes;
using cpu::infinity;
using cpu::nan;
using cpu::random;
using cpu::roundings;
using cpu::same_bits;
using cpu::set;

// What the reference runs on.
inline cpu::ThreadPool& pool() {
  static cpu::ThreadPool one(1, false);
  return one;
}
constexpr cpu::Isa portable = cpu::Isa::portable;

// Elements that a tensor starts behind an aligned address: the path of 16-byte accesses, and the
// other one.
inline const std::vector<int64_t> shifts = {0, 1};

// A copy of a host tensor on the device, between bytes that nobody may write.
class OnDevice {
 public:
  explicit OnDevice(TensorView host, int64_t shift = 0)
      : before_(dtype_bytes(host.dtype(), shift)),
        n_bytes_(host.n_bytes()),
        memory_(device_tensor(DType::I32, {(before_ + n_bytes_) / 4 + guard / 4})),
        view_(static_cast<std::byte*>(memory_.data()) + before_, host.dtype(), host.shape()) {
    fill_bytes(memory_, pattern);
    copy_to_device(host.data(), view_);
  }
  operator TensorView() const { return view_; }  // NOLINT(google-explicit-constructor)
  TensorView view() const { return view_; }

  Tensor download(Queue& queue) const {
    queue.synchronize();
    const Tensor all(DType::I32, memory_.shape());
    check(
        cudaMemcpy(
            all.data(), memory_.data(), static_cast<size_t>(all.n_bytes()), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
    const auto* bytes = static_cast<const unsigned char*>(all.data());
    for (int64_t i = 0; i < all.n_bytes(); ++i) {
      if (i >= before_ && i < before_ + n_bytes_) continue;
      if (bytes[i] != pattern) ADD_FAILURE() << "byte " << i - before_ << " was written";
    }
    Tensor out(view_.dtype(), view_.shape());
    std::memcpy(out.data(), bytes + before_, static_cast<size_t>(n_bytes_));
    return out;
  }

 private:
  static constexpr int64_t guard = 64;  // bytes
  static constexpr unsigned char pattern = 0xA5;
  int64_t before_;
  int64_t n_bytes_;
  Tensor memory_;
  TensorView view_;
};

// got and want each lie within relative * size of the exact value before their store.
inline void expect_close(TensorView got, TensorView want, int64_t i, double error) {
  cpu::expect_near(got, i, at(want, i), error + tolerance::store(want.dtype(), at(want, i)));
}

// test(dtype, shift) for both compute dtypes, aligned and not.
inline void for_layouts(const std::function<void(DType, int64_t)>& test) {
  for (const DType dtype : dtypes) {
    for (const int64_t shift : shifts) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + ", shift " + std::to_string(shift));
      test(dtype, shift);
    }
  }
}

}  // namespace testbed::cuda
