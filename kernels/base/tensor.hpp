// Tensor owns, TensorView borrows. Row-major, last dimension contiguous; 64-bit sizes and offsets.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <span>

#include "kernels/base/check.hpp"
#include "kernels/base/dtype.hpp"

namespace testbed {

// Up to four dimensions. rank() == 0 is a scalar with one element.
class Shape {
 public:
  static constexpr int max_rank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    CHECK(rank_ <= max_rank);
    for (int i = 0; i < rank_; ++i) {
      CHECK(dims[static_cast<size_t>(i)] >= 0);
      dims_[static_cast<size_t>(i)] = dims[static_cast<size_t>(i)];
    }
  }
  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i < 0 ? i + rank_ : i)]; }
  int64_t n_elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
    return n;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, max_rank> dims_{};
  int rank_ = 0;
};

// A borrowed, contiguous tensor. Copying it copies the reference.
class TensorView {
 public:
  TensorView() = default;
  TensorView(void* data, DType dtype, Shape shape) : data_(data), dtype_(dtype), shape_(shape) {}

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t n_elements() const { return shape_.n_elements(); }
  int64_t n_bytes() const { return dtype_bytes(dtype_, n_elements()); }
  int64_t n_rows() const { return shape_.rank() == 0 ? 1 : shape_[0]; }
  int64_t row_elements() const { return n_rows() == 0 ? 0 : n_elements() / n_rows(); }
  void* data() const { return data_; }
  bool empty() const { return data_ == nullptr || n_elements() == 0; }

  template <typename T>
  T* as() const {
    static_assert(!std::is_const_v<T>);
    CHECK(static_cast<int64_t>(sizeof(T)) * dtype_info(dtype_).block_elements ==
          dtype_info(dtype_).block_bytes);
    return static_cast<T*>(data_);
  }

  // Rows [begin, begin + count) of the first dimension.
  TensorView rows(int64_t begin, int64_t count) const {
    CHECK(shape_.rank() >= 1 && begin >= 0 && count >= 0 && begin + count <= shape_[0]);
    std::array<int64_t, Shape::max_rank> dims{};
    for (int i = 0; i < shape_.rank(); ++i) dims[static_cast<size_t>(i)] = shape_[i];
    dims[0] = count;
    const int64_t offset = shape_[0] == 0 ? 0 : dtype_bytes(dtype_, begin * row_elements());
    return {static_cast<std::byte*>(data_) + offset,
            dtype_,
            Shape(std::span(dims.data(), static_cast<size_t>(shape_.rank())))};
  }
  // The same elements under another shape.
  TensorView reshaped(Shape shape) const {
    CHECK(shape.n_elements() == n_elements());
    return {data_, dtype_, shape};
  }

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::F32;
  Shape shape_{0};
};

// Owning tensor; host memory is aligned to 64 bytes and zero-initialised.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Shape shape);
  // At an address that `free` gives back; nullptr: somebody else owns it.
  Tensor(void* data, DType dtype, Shape shape, void (*free)(void*) = nullptr)
      : data_(data, Free{free}), dtype_(dtype), shape_(shape) {}
  TensorView view() const { return {data_.get(), dtype_, shape_}; }
  operator TensorView() const { return view(); }  // NOLINT(google-explicit-constructor)
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t n_elements() const { return shape_.n_elements(); }
  int64_t n_bytes() const { return dtype_bytes(dtype_, n_elements()); }
  void* data() const { return data_.get(); }
  bool empty() const { return view().empty(); }
  template <typename T>
  T* as() const {
    return view().as<T>();
  }

 private:
  struct Free {
    void (*free)(void*);
    void operator()(void* p) const {
      if (free != nullptr) free(p);
    }
  };
  std::unique_ptr<void, Free> data_;
  DType dtype_ = DType::F32;
  Shape shape_{0};
};

}  // namespace testbed
