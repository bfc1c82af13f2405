#include "runtime/serving/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"

namespace testbed {
namespace {

// What a rank tells the others of its part of a row.
struct LocalMax {
  float value;
  int32_t id;
  int32_t finite;
};
static_assert(sizeof(LocalMax) == sampled_row_bytes);

[[noreturn]] void not_finite(const LogitsRow& row) {
  throw NumericError(
      fmt::format("logits of request {} at position {} are not finite", row.request, row.position));
}

std::vector<int32_t> greedy(Device& device,
                            Communicator& tp,
                            TensorView logits_local,
                            int64_t first_id,
                            std::span<const LogitsRow> rows) {
  std::vector<RowMax> mine(rows.size());
  if (logits_local.row_elements() > 0) {
    device.row_max(logits_local, mine);
  } else {
    for (RowMax& row : mine) row.value = -std::numeric_limits<float>::infinity();
  }
  std::vector<LocalMax> local;
  local.reserve(mine.size());
  for (const RowMax& row : mine) {
    local.push_back({row.value, static_cast<int32_t>(row.index + first_id), row.finite ? 1 : 0});
  }
  const auto n_words = static_cast<int64_t>(3 * rows.size());
  std::vector<LocalMax> all(rows.size() * static_cast<size_t>(tp.size()));
  tp.all_gather({local.data(), DType::I32, {n_words}},
                {all.data(), DType::I32, {tp.size(), n_words}});

  std::vector<int32_t> ids;
  for (size_t r = 0; r < rows.size(); ++r) {
    LocalMax best = all[r];
    for (size_t rank = 0; rank < static_cast<size_t>(tp.size()); ++rank) {
      const LocalMax& candidate = all[rank * rows.size() + r];
      if (candidate.finite == 0) not_finite(rows[r]);
      if (candidate.value > best.value)
        best = candidate;  // ranks are in id order: ties stay lowest
    }
    ids.push_back(best.id);
  }
  return ids;
}

}  // namespace

Tensor gather_logits(Device& device,
                     Communicator& tp,
                     TensorView logits_local,
                     int64_t vocab_size) {
  const int64_t n_rows = logits_local.n_rows();
  const int64_t n_local = logits_local.shape()[1];
  Tensor mine(DType::F32, logits_local.shape());
  device.download(logits_local, mine);
  if (tp.size() == 1) return mine;
  const int64_t each = (vocab_size + tp.size() - 1) / tp.size();
  const Tensor padded(DType::F32, {n_rows, each});
  for (int64_t r = 0; r < n_rows; ++r) {
    float* row = padded.as<float>() + r * each;
    std::copy_n(mine.as<float>() + r * n_local, n_local, row);
    std::fill(row + n_local, row + each, -std::numeric_limits<float>::infinity());
  }
  const Tensor parts(DType::F32, {tp.size(), n_rows, each});
  tp.all_gather(padded, parts);
  Tensor full(DType::F32, {n_rows, vocab_size});
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t rank = 0; rank < tp.size(); ++rank) {
      const int64_t begin = std::min(vocab_size, rank * each);
      const int64_t n = std::min(vocab_size, begin + each) - begin;
      std::copy_n(parts.as<float>() + (rank * n_rows + r) * each,
                  n,
                  full.as<float>() + r * vocab_size + begin);
    }
  }
  return full;
}

std::vector<int32_t> sample(Device& device,
                            Communicator& tp,
                            const SamplingConfig& config,
                            TensorView logits_local,
                            int64_t first_id,
                            int64_t vocab_size,
                            std::span<const LogitsRow> rows) {
  if (config.temperature == 0.0) return greedy(device, tp, logits_local, first_id, rows);
  const Tensor full = gather_logits(device, tp, logits_local, vocab_size);
  std::vector<int32_t> ids;
  for (size_t r = 0; r < rows.size(); ++r) {
    const float* row = full.as<float>() + static_cast<int64_t>(r) * vocab_size;
    const std::span<const float> logits(row, static_cast<size_t>(vocab_size));
    if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
      not_finite(rows[r]);
    }
    ids.push_back(draw(logits,
                       config.temperature,
                       config.top_p,
                       uniform(config.seed, rows[r].request, rows[r].position)));
  }
  return ids;
}

int32_t draw(std::span<const float> logits, double temperature, double top_p, double u) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const double largest = logits[static_cast<size_t>(order.front())];
  std::vector<double> weight;
  weight.reserve(order.size());
  for (const int32_t id : order) {
    weight.push_back(std::exp((logits[static_cast<size_t>(id)] - largest) / temperature));
  }
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  // The nucleus: the fewest largest tokens whose probability reaches top_p.
  size_t n_kept = 0;
  double kept = 0.0;
  while (n_kept < weight.size() && (n_kept == 0 || kept < top_p * total)) kept += weight[n_kept++];
  double passed = 0.0;
  for (size_t i = 0; i < n_kept; ++i) {
    passed += weight[i];
    if (u * kept < passed) return order[i];
  }
  return order[n_kept - 1];
}

double uniform(uint64_t seed, int64_t request, int64_t position) {
  const uint64_t bits =
      mix64(mix64(mix64(seed) ^ static_cast<uint64_t>(request)) ^ static_cast<uint64_t>(position));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace testbed
