// The grouped kernels of expert_linear.cu on the emulation, against sums in double: few and many
// rows, whole and odd tiles, counts that only the device knows.
#include <algorithm>
#include <memory>

#include "kernels/cuda/gemm.hpp"
#include "tests/unit/cuda_linear_support.hpp"

namespace testbed::cuda {
namespace {

struct Matrices {
  std::vector<Tensor> values;  // [n, k] each
  std::vector<Tensor> on_device;
  Matrices(int64_t count, int64_t n, int64_t k, DType dtype) {
    values.reserve(static_cast<size_t>(count));
    on_device.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(random(dtype, {n, k}, static_cast<unsigned>(100 + i)));
      on_device.push_back(to_device(values.back()));
    }
  }
  // Addresses; nullptr for those that must not be read.
  Tensor addresses(const std::vector<bool>& is_read) const {
    std::vector<const void*> all(values.size(), nullptr);
    for (size_t i = 0; i < all.size(); ++i) {
      if (is_read[i]) all[i] = on_device[i].data();
    }
    return device_array(all);
  }
};

struct Case {
  std::vector<int64_t> first_row;
  int64_t n;
  int64_t k;
  DType dtype;
  DType y_dtype;
  bool biased;
  int64_t n_more_rows = 0;  // of x and y, behind the last group's
};

class Experts {
 public:
  explicit Experts(const Case& c)
      : case_(c),
        n_groups_(static_cast<int64_t>(c.first_row.size()) - 1),
        n_rows_(c.first_row.back() + c.n_more_rows),
        x_(random(c.dtype, {n_rows_, c.k}, 1)),
        biases_(random(DType::F32, {n_groups_, c.n}, 2)),
        weights_(n_groups_, c.n, c.k, c.dtype),
        device_x_(to_device(x_)),
        device_biases_(to_device(biases_)),
        first_row_(device_array(c.first_row)) {
    std::vector<bool> is_read;
    is_read.reserve(static_cast<size_t>(n_groups_));
    for (int64_t g = 0; g < n_groups_; ++g) is_read.push_back(begin(g) < begin(g + 1));
    addresses_ = weights_.addresses(is_read);
    y_ = unwritten(c.y_dtype, {n_rows_, c.n});
  }

  void run(Queue& queue) const {
    grouped_linear(queue,
                   {.x = device_x_,
                    .y = y_,
                    .first_row = static_cast<const int64_t*>(first_row_.data()),
                    .weights = static_cast<const void* const*>(addresses_.data()),
                    .weight_dtype = case_.dtype,
                    .biases = case_.biased ? device_biases_.as<float>() : nullptr,
                    .n_groups = n_groups_,
                    .n = case_.n,
                    .k = case_.k});
  }

  void expect_results(Queue& queue) const {
    const Tensor y = to_host(queue, y_);
    for (int64_t g = 0; g < n_groups_; ++g) {
      const Tensor& w = weights_.values[static_cast<size_t>(g)];
      for (int64_t i = begin(g) * case_.n; i < begin(g + 1) * case_.n; ++i) {
        const int64_t j = i % case_.n;
        expect_dot(dot(x_, i / case_.n * case_.k, w, j * case_.k, case_.k),
                   case_.biased ? at(biases_, g * case_.n + j) : 0.0,
                   BiasIsAdded::before_the_store,
                   y,
                   i);
      }
    }
    for (int64_t i = case_.first_row.back() * case_.n; i < y.n_elements(); ++i) {
      EXPECT_TRUE(std::isnan(at(y, i))) << "row " << i / case_.n << " is no group's";
    }
  }

 private:
  int64_t begin(int64_t group) const { return case_.first_row[static_cast<size_t>(group)]; }

  Case case_;
  int64_t n_groups_;
  int64_t n_rows_;
  Tensor x_;
  Tensor biases_;
  Matrices weights_;
  Tensor device_x_;
  Tensor device_biases_;
  Tensor first_row_;
  Tensor addresses_;
  Tensor y_;
};

void check_experts(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.first_row.size() - 1 << " groups, " << c.first_row.back()
                                  << " rows, n " << c.n << ", k " << c.k << ", "
                                  << dtype_name(c.dtype) << " to " << dtype_name(c.y_dtype));
  Queue queue;
  const Experts experts(c);
  experts.run(queue);
  experts.expect_results(queue);
}

struct Types {
  DType operands;
  DType result;
};
const std::vector<Types> types = {{DType::BF16, DType::BF16},
                                  {DType::BF16, DType::F32},
                                  {DType::F32, DType::F32},
                                  {DType::F32, DType::BF16}};

TEST(CudaExperts, few_rows_each) {
  for (const Types& t : types) {
    for (const bool biased : {false, true}) {
      check_experts({{0, 2, 2, 2, 9, 10}, 64, 64, t.operands, t.result, biased});
      check_experts({{0, 2, 2, 2, 9, 10}, 72, 200, t.operands, t.result, biased});
      check_experts({{0, 2, 2, 2, 9, 10}, 33, 46, t.operands, t.result, biased});
    }
  }
}

TEST(CudaExperts, many_rows_each) {
  for (const Types& t : types) {
    for (const bool biased : {false, true}) {
      check_experts({{0, 65, 66, 66, 130}, 136, 200, t.operands, t.result, biased});
      check_experts({{0, 64, 70}, 131, 37, t.operands, t.result, biased});
    }
  }
}

TEST(CudaExperts, one_group_has_all_rows_or_none_has_any) {
  for (const Types& t : types) {
    check_experts({{0, 0, 40, 40, 40}, 40, 32, t.operands, t.result, true});
    check_experts({{0, 0, 0, 0}, 40, 32, t.operands, t.result, true});
    check_experts({{0, 3}, 1, 1, t.operands, t.result, true});
    check_experts({{0}, 40, 32, t.operands, t.result, false});
  }
}

TEST(CudaExperts, more_groups_than_a_warp_has_lanes) {
  std::vector<int64_t> first_row = {0};
  for (int64_t g = 0; g < 70; ++g) {
    first_row.push_back(first_row.back() + (g % 3 == 0 ? 0 : g == 40 ? 35 : g % 2));
  }
  check_experts({first_row, 16, 24, DType::BF16, DType::BF16, true});
  check_experts({first_row, 16, 24, DType::F32, DType::F32, true});
}

TEST(CudaExperts, rows_behind_the_last_group_are_left) {
  for (const Types& t : types) {
    check_experts({{0, 3, 5}, 24, 16, t.operands, t.result, true, 30});
    check_experts({{0, 3, 5}, 24, 16, t.operands, t.result, true, 90});
    check_experts({{0, 0, 0}, 24, 16, t.operands, t.result, true, 4});
  }
}

// Where the rows of x and y are, and not on 16 bytes.
TEST(CudaExperts, rows_start_anywhere) {
  constexpr int64_t n = 8;
  constexpr int64_t k = 16;
  for (const DType dtype : {DType::BF16, DType::F32}) {
    Queue queue;
    const Tensor x = random(dtype, {2 * k + 1}, 1);
    const Tensor device_x = to_device(x);
    const Tensor device_y = unwritten(dtype, {2 * n + 1});
    const Matrices w(1, n, k, dtype);
    const Tensor addresses = w.addresses({true});
    const Tensor first_row = device_array<int64_t>({0, 2});
    grouped_linear(queue,
                   {.x = device_x.view().rows(1, 2 * k).reshaped({2, k}),
                    .y = device_y.view().rows(1, 2 * n).reshaped({2, n}),
                    .first_row = static_cast<const int64_t*>(first_row.data()),
                    .weights = static_cast<const void* const*>(addresses.data()),
                    .weight_dtype = dtype,
                    .biases = nullptr,
                    .n_groups = 1,
                    .n = n,
                    .k = k});
    const Tensor y = to_host(queue, device_y);
    EXPECT_TRUE(std::isnan(at(y, 0)));
    for (int64_t i = 0; i < 2 * n; ++i) {
      expect_dot(dot(x, 1 + i / n * k, w.values[0], i % n * k, k),
                 0.0,
                 BiasIsAdded::before_the_store,
                 y,
                 1 + i);
    }
  }
}

// A graph holds neither counts nor addresses of matrices: it is replayed with others.
TEST(CudaExperts, counts_are_read_on_the_device) {
  constexpr int64_t n = 40;
  constexpr int64_t k = 24;
  constexpr int64_t n_rows = 12;
  Queue queue;
  const Tensor x = random(DType::BF16, {n_rows, k}, 1);
  const Tensor device_x = to_device(x);
  const Matrices w(3, n, k, DType::BF16);
  const Tensor addresses = w.addresses({true, true, true});
  const Tensor first_row = device_tensor(DType::I32, {8});
  const Tensor device_y = device_tensor(DType::F32, {n_rows, n});
  const std::vector<std::vector<int64_t>> counts = {
      {0, 1, 2, 3}, {0, 0, 12, 12}, {0, 4, 4, 9}, {0, 12, 12, 12}, {0, 0, 0, 0}};
  for (const auto& first : counts) {
    fill_bytes(device_y, 0xff);
    check(cudaMemcpyAsync(first_row.data(),
                          first.data(),
                          first.size() * sizeof(int64_t),
                          cudaMemcpyHostToDevice,
                          queue.stream()),
          "cudaMemcpyAsync");
    queue.section(7, [&] {
      grouped_linear(queue,
                     {.x = device_x,
                      .y = device_y,
                      .first_row = static_cast<const int64_t*>(first_row.data()),
                      .weights = static_cast<const void* const*>(addresses.data()),
                      .weight_dtype = DType::BF16,
                      .biases = nullptr,
                      .n_groups = 3,
                      .n = n,
                      .k = k});
    });
    const Tensor y = to_host(queue, device_y);
    for (int64_t i = 0; i < n_rows * n; ++i) {
      const auto group = std::upper_bound(first.begin(), first.end(), i / n) - first.begin() - 1;
      if (group == 3) {
        EXPECT_TRUE(std::isnan(at(y, i)));
        continue;
      }
      const Tensor& of_group = w.values[static_cast<size_t>(group)];
      expect_dot(
          dot(x, i / n * k, of_group, i % n * k, k), 0.0, BiasIsAdded::before_the_store, y, i);
    }
  }
  EXPECT_EQ(queue.stats().captures, 1);
  EXPECT_EQ(queue.stats().recaptures, 0);
  EXPECT_GE(queue.stats().replays, 3);
}

void check_heads(int64_t m, int64_t heads, int64_t n, int64_t k, const Types& t) {
  SCOPED_TRACE(testing::Message() << m << " rows, " << heads << " heads, n " << n << ", k " << k);
  Queue queue;
  const Tensor x = random(t.operands, {m, heads, k}, 1);
  const Matrices w(heads, n, k, t.operands);
  const Tensor addresses = w.addresses(std::vector<bool>(static_cast<size_t>(heads), true));
  const Tensor device_x = to_device(x);
  const Tensor device_y = unwritten(t.result, {m, heads, n});
  head_linear(
      queue, device_x, static_cast<const void* const*>(addresses.data()), t.operands, device_y);
  const Tensor y = to_host(queue, device_y);
  for (int64_t i = 0; i < y.n_elements(); ++i) {
    const int64_t row = i / n;  // of [m * heads]
    const Tensor& of_head = w.values[static_cast<size_t>(row % heads)];
    expect_dot(dot(x, row * k, of_head, i % n * k, k), 0.0, BiasIsAdded::before_the_store, y, i);
  }
}

TEST(CudaExperts, heads_have_matrices_of_their_own) {
  for (const Types& t : types) {
    check_heads(1, 3, 64, 128, t);
    check_heads(16, 2, 72, 72, t);
    check_heads(5, 3, 33, 30, t);
    check_heads(17, 2, 132, 64, t);
    check_heads(70, 2, 35, 50, t);
    check_heads(0, 2, 35, 50, t);
  }
}

}  // namespace
}  // namespace testbed::cuda
