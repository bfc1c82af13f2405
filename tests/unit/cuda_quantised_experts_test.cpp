// Experts with quantised weights on the CUDA device: rows of each by its own matrix.
#include "tests/unit/cuda_quantised_support.hpp"

namespace testbed::cuda {
namespace {

using Experts = std::vector<std::unique_ptr<QuantisedCase>>;

struct Case {
  std::vector<int64_t> first_row;
  int64_t n;
  int64_t k;
  DType x_dtype;
  DType y_dtype;
};

void check_experts(CudaDevice& device, const WeightFormat& format, const Case& c) {
  const auto n_experts = static_cast<int64_t>(c.first_row.size()) - 1;
  const int64_t n_rows = c.first_row.back();
  SCOPED_TRACE(testing::Message() << format_name(format) << ", " << n_experts << " experts, "
                                  << n_rows << " rows, " << dtype_name(c.x_dtype) << " to "
                                  << dtype_name(c.y_dtype));
  Experts experts;
  std::vector<WeightMatrix> weights;
  experts.reserve(static_cast<size_t>(n_experts));
  weights.reserve(static_cast<size_t>(n_experts));
  for (int64_t e = 0; e < n_experts; ++e) {
    experts.push_back(
        std::make_unique<QuantisedCase>(device, format, c.n, c.k, static_cast<unsigned>(e + 1)));
    weights.push_back(experts.back()->on_device);
  }
  const Tensor x = random(c.x_dtype, {n_rows, c.k}, 20);
  const Tensor biases = random(DType::F32, {n_experts, c.n}, 21);
  const Tensor device_biases = to_device(biases);
  const Tensor device_y = unwritten(c.y_dtype, {n_rows, c.n});
  device.expert_linear(to_device(x), {c.first_row}, weights, device_biases, device_y, n_rows);
  const Tensor y = to_host(device.queue(), device_y);
  for (int64_t e = 0; e < n_experts; ++e) {
    const auto at = static_cast<size_t>(e);
    for (int64_t i = c.first_row[at] * c.n; i < c.first_row[at + 1] * c.n; ++i) {
      expect_product(x,
                     *experts[at],
                     biases.view().rows(e, 1).reshaped({c.n}),
                     Weights::exact,
                     y,
                     i / c.n,
                     i % c.n);
    }
  }
}

TEST_F(CudaQuantised, experts_of_every_format) {
  for (const weight_formats::Named& named : weight_formats::quantised) {
    const std::vector<int64_t> few = {0, 2, 2, 11, 12};
    check_experts(device_, named.format, {few, 33, 72, DType::BF16, DType::BF16});
    check_experts(device_, named.format, {few, 24, 37, DType::F32, DType::F32});
  }
}

TEST_F(CudaQuantised, experts_of_many_rows) {
  const std::vector<int64_t> many = {0, 65, 65, 66, 96};
  for (const WeightFormat& format : {weight_formats::int8_row, weight_formats::q4_1}) {
    check_experts(device_, format, {many, 72, 100, DType::BF16, DType::F32});
    check_experts(device_, format, {many, 20, 40, DType::F32, DType::BF16});
  }
}

TEST_F(CudaQuantised, experts_without_any_rows) {
  check_experts(device_, weight_formats::int4_g32, {{0, 0, 0}, 16, 64, DType::BF16, DType::BF16});
}

}  // namespace
}  // namespace testbed::cuda
