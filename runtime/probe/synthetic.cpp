#include "runtime/probe/synthetic.hpp"

namespace testbed {

Tensor synthetic_tensor(DType dtype, const Shape& shape) {
  CHECK(dtype == DType::F32 || dtype == DType::BF16);
  Tensor tensor(dtype, shape);
  uint64_t state = 1;
  for (int64_t i = 0; i < tensor.n_elements(); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator
    const float value = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31F;
    if (dtype == DType::F32) {
      tensor.as<float>()[i] = value;
    } else {
      tensor.as<bf16>()[i] = to_bf16(value);
    }
  }
  return tensor;
}

Tensor synthetic_tensor(Device& device, DType dtype, const Shape& shape) {
  Tensor tensor = device.allocate(dtype, shape);
  device.upload(synthetic_tensor(dtype, shape), tensor);
  return tensor;
}

}  // namespace testbed
