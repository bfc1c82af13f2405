// y = x W^T with oneDNN, weights in the layout that it prefers: bf16 or f32 into the type of y, or
// its U8 by S8 product into S32, without scales.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "kernels/base/tensor.hpp"

namespace testbed {

class OneDnnProduct {
 public:
  OneDnnProduct(TensorView x, TensorView w, TensorView y)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using Memory = dnnl::memory;
    const int64_t m = x.n_rows();
    const int64_t n = w.n_rows();
    const int64_t k = x.row_elements();
    const auto x_type = x.dtype() == DType::I8 ? Memory::data_type::u8 : type(x.dtype());
    const Memory::desc x_desc({m, k}, x_type, Memory::dims{k, 1});
    const Memory::desc w_plain({k, n}, type(w.dtype()), Memory::dims{1, k});
    const Memory::desc w_any({k, n}, type(w.dtype()), Memory::format_tag::any);
    const Memory::desc y_desc({m, n}, type(y.dtype()), Memory::dims{n, 1});
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(x_desc, w_any, y_desc), engine_);
    matmul_ = dnnl::matmul(desc);
    const Memory weights(desc.weights_desc(), engine_);
    Memory plain(w_plain, engine_, w.data());
    Memory packed = weights;
    dnnl::reorder(plain, packed).execute(stream_, plain, packed);
    stream_.wait();
    args_ = {{DNNL_ARG_SRC, Memory(x_desc, engine_, x.data())},
             {DNNL_ARG_WEIGHTS, packed},
             {DNNL_ARG_DST, Memory(y_desc, engine_, y.data())}};
  }
  void run() {
    matmul_.execute(stream_, args_);
    stream_.wait();
  }

 private:
  static dnnl::memory::data_type type(DType dtype) {
    using Type = dnnl::memory::data_type;
    switch (dtype) {
      case DType::F32:
        return Type::f32;
      case DType::BF16:
        return Type::bf16;
      case DType::I8:
        return Type::s8;
      case DType::I32:
        return Type::s32;
      default:
        check_failed("type of oneDNN", __FILE__, __LINE__);
    }
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> args_;
};

}  // namespace testbed
