#include "kernels/cuda/cuda_device.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/errors.hpp"
#include "kernels/cuda/quantised.hpp"

namespace testbed {
namespace {

constexpr int64_t staging_bytes = int64_t{16} << 20;

// What is expanded stays in the L2 cache of the larger GPUs (H100: 50 MB) until it is multiplied.
constexpr int64_t expanded_bytes = int64_t{32} << 20;

class CudaWeights final : public WeightMatrix::Storage {
 public:
  CudaWeights(DType dtype, Shape shape) : data(cuda::device_tensor(dtype, shape)) {}
  Tensor data;  // [n_rows, n_cols]; of a quantised matrix QuantisedLayout::n_bytes of it, I8
};

// Codes of NaN: the kernels expand codes by arithmetic that knows none.
bool has_nan(const QuantisedRows& rows) {
  if (rows.format.coding != WeightCoding::fp8) return false;
  const auto* codes = rows.codes.as<int8_t>();
  return std::any_of(codes, codes + rows.codes.n_elements(), [](int8_t code) {
    return (static_cast<uint8_t>(code) & 0x7fU) == 0x7fU;
  });
}

std::byte* byte_at(TensorView x, int64_t offset) {
  return static_cast<std::byte*>(x.data()) + offset;
}

}  // namespace

TensorView CudaDevice::values(const WeightMatrix& weight) {
  return static_cast<CudaWeights&>(weight.storage()).data;
}

CudaDevice::CudaDevice(std::shared_ptr<CudaStreams> streams,
                       DType compute_dtype,
                       std::string description,
                       Graphs graphs)
    : Device(streams->clock),
      streams_(std::move(streams)),
      queue_(streams_->queue),
      compute_dtype_(compute_dtype),
      description_(std::move(description)),
      graphs_(graphs),
      gemm_(queue_),
      attention_(queue_),
      staging_(cuda::pinned_tensor(DType::I32, {staging_bytes / 4})) {
  CHECK(compute_dtype == DType::F32 || compute_dtype == DType::BF16);
}

Tensor CudaDevice::allocate(DType dtype, Shape shape) { return cuda::device_tensor(dtype, shape); }

WeightMatrix CudaDevice::allocate_weight(int64_t n_rows,
                                         int64_t n_cols,
                                         const WeightFormat& format) {
  const auto held = [&](DType dtype, Shape shape) {
    return WeightMatrix(n_rows, n_cols, format, std::make_shared<CudaWeights>(dtype, shape));
  };
  if (!format.is_quantised()) {
    CHECK(format.dtype == DType::F32 || format.dtype == DType::BF16);
    return held(format.dtype, {n_rows, n_cols});
  }
  CHECK(!queue_.taping());
  if (expanded_.empty()) expanded_ = cuda::device_tensor(DType::I8, {expanded_bytes});
  const cuda::QuantisedLayout layout(format, n_rows, n_cols);
  WeightMatrix weight = held(DType::I8, {layout.n_bytes});
  cuda::check(cudaMemsetAsync(
                  values(weight).data(), 0, static_cast<size_t>(layout.n_bytes), queue_.stream()),
              "cudaMemsetAsync");
  return weight;
}

void CudaDevice::store_rows(const WeightMatrix& weight, int64_t first_row, TensorView rows) {
  CHECK(rows.dtype() == weight.dtype() && rows.row_elements() == weight.n_cols());
  upload(rows, values(weight).rows(first_row, rows.n_rows()));
}

void CudaDevice::store_rows(const WeightMatrix& weight,
                            int64_t first_row,
                            const QuantisedRows& rows) {
  CHECK(rows.format == weight.format() && rows.n_cols() == weight.n_cols());
  if (has_nan(rows)) throw WeightsError("an fp8 weight is not a number");
  const cuda::QuantisedLayout layout(rows.format, weight.n_rows(), weight.n_cols());
  // A row as it travels: codes, scales, offsets.
  const int64_t row_bytes = layout.n_cols + 16 * (1 + layout.n_groups);
  const int64_t at_a_time = expanded_bytes / row_bytes;
  CHECK(at_a_time > 0);
  for (int64_t begin = 0; begin < rows.n_rows(); begin += at_a_time) {
    const int64_t n = std::min(at_a_time, rows.n_rows() - begin);
    const QuantisedRows part = rows.rows(begin, n);
    int64_t used = 0;
    const auto sent = [&](TensorView host) -> const void* {
      constexpr int64_t alignment = 16;
      std::byte* const at = byte_at(expanded_, used);
      used += (host.n_bytes() + alignment - 1) / alignment * alignment;
      CHECK(used <= expanded_bytes);
      if (host.n_bytes() > 0) upload(host, {at, host.dtype(), host.shape()});
      return at;
    };
    cuda::store_quantised(queue_,
                          layout,
                          values(weight).data(),
                          {.codes = static_cast<const int8_t*>(sent(part.codes)),
                           .scales = sent(part.scales),
                           .offsets = sent(part.offsets),
                           .first_row = first_row + begin,
                           .n_rows = n,
                           .n_groups = rows.format.n_groups(layout.n_cols)});
  }
  queue_.synchronize();
}

// Through pinned memory: copies from other host memory would block, and be slower.
void CudaDevice::upload(TensorView host, TensorView device) {
  CHECK(host.n_bytes() == device.n_bytes() && !queue_.taping());
  for (int64_t begin = 0; begin < host.n_bytes(); begin += staging_bytes) {
    const auto n = static_cast<size_t>(std::min(staging_bytes, host.n_bytes() - begin));
    std::memcpy(staging_.data(), byte_at(host, begin), n);
    cuda::check(
        cudaMemcpyAsync(
            byte_at(device, begin), staging_.data(), n, cudaMemcpyHostToDevice, queue_.stream()),
        "cudaMemcpyAsync");
    queue_.synchronize();
  }
}

void CudaDevice::download(TensorView device, TensorView host) {
  CHECK(host.n_bytes() == device.n_bytes() && !queue_.taping());
  for (int64_t begin = 0; begin < host.n_bytes(); begin += staging_bytes) {
    const auto n = static_cast<size_t>(std::min(staging_bytes, host.n_bytes() - begin));
    cuda::check(
        cudaMemcpyAsync(
            staging_.data(), byte_at(device, begin), n, cudaMemcpyDeviceToHost, queue_.stream()),
        "cudaMemcpyAsync");
    queue_.synchronize();
    std::memcpy(byte_at(host, begin), staging_.data(), n);
  }
}

void CudaDevice::fill_synthetic(TensorView x) {
  if (!x.empty()) cuda::fill_synthetic(queue_, x);
}

void CudaDevice::synchronize() { queue_.synchronize(); }

void CudaDevice::section(uint64_t key,
                         const std::function<void()>& work,
                         const std::function<void()>& before_capture) {
  if (key != 0) settle_stamps();
  queue_.section(captures() ? key : 0, work, before_capture);
}

std::map<std::string, std::string> CudaDevice::facts() const {
  const cuda::GraphStats& stats = queue_.stats();
  return {{"graph_replays", std::to_string(stats.replays)},
          {"graph_captures", std::to_string(stats.captures)},
          {"graph_recaptures", std::to_string(stats.recaptures)}};
}

void CudaDevice::settle_stamps() { streams_->clock.settle(); }

int64_t CudaDevice::stamp_ns(int64_t stamp) const { return streams_->clock.ns(stamp); }

TensorView CudaDevice::scratch(Tensor& held, DType dtype, Shape shape) {
  const int64_t n_bytes = dtype_bytes(dtype, shape.n_elements());
  if (held.n_bytes() < n_bytes) {
    queue_.retire(std::exchange(held, cuda::device_tensor(DType::I32, {(n_bytes + 3) / 4})));
  }
  return {held.data(), dtype, shape};
}

}  // namespace testbed
