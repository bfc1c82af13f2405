// The unit references of attention in double (tests/fixtures/units/attention.json), as what a
// device computes and what it should give.
#pragma once

#include <fstream>
#include <string>

#include "tests/unit/attention_batch.hpp"
#include "tests/unit/test_safetensors.hpp"

namespace testbed::cpu {

using References = std::map<std::string, ReferenceTensor>;

const std::string units = std::string(TESTBED_SOURCE_DIR) + "/tests/fixtures/units/";

// One case's inputs in a cache of scattered blocks.
class UnitCase {
 public:
  UnitCase(const nlohmann::json& c, const References& tensors, int64_t block_size);

  // What to compute: out and, if not empty, its log-sum-exp. Borrows from this.
  AttentionArgs args(TensorView out, TensorView lse);
  Shape out_shape() const { return {q_.shape()[0], q_.shape()[1], kv_.v_dim}; }
  TensorView sinks() const { return sinks_; }

 private:
  Tensor rows_of(const ReferenceTensor& t, int64_t first, int64_t count) const;

  nlohmann::json case_;
  Tensor q_, k_, v_, sinks_;
  KvView kv_;
  std::vector<int32_t> head_to_kv_;
  std::vector<KvBlock> blocks_;
  PositionRun rows_;
  PositionRun keys_;
  AttentionSequence sequence_;
};

inline Tensor UnitCase::rows_of(const ReferenceTensor& t, int64_t first, int64_t count) const {
  Tensor rows(DType::F32, {count, t.shape[1], t.shape[2]});
  for (int64_t i = 0; i < rows.n_elements(); ++i) {
    put(rows,
        i,
        static_cast<float>(t.values[static_cast<size_t>(first * t.shape[1] * t.shape[2] + i)]));
  }
  return rows;
}

inline UnitCase::UnitCase(const nlohmann::json& c, const References& tensors, int64_t block_size)
    : case_(c) {
  const std::string inputs = c.at("inputs");
  const ReferenceTensor& k = tensors.at(inputs + ".k");
  const ReferenceTensor& v = tensors.at(inputs + ".v");
  q_ = rows_of(tensors.at(inputs + ".q"), c.at("q_first"), c.at("q_count"));
  const auto range = c.value("kv_range", std::vector<int64_t>{0, k.shape[0]});
  keys_ = {range[0], range[1] - range[0]};
  // Behind all keys, a row sees them all.
  rows_ = {c.at("q_first").get<int64_t>() + (c.value("causal", true) ? 0 : k.shape[0]),
           c.at("q_count")};
  const int64_t n_blocks = (keys_.n + block_size - 1) / block_size;
  const int64_t n_kv_heads = k.shape[1];
  k_ = Tensor(DType::F32, {n_blocks, n_kv_heads, block_size, k.shape[2]});
  v_ = Tensor(DType::F32, {n_blocks, n_kv_heads, block_size, v.shape[2]});
  kv_ = {
      k_.data(), v_.data(), DType::F32, n_blocks, block_size, n_kv_heads, k.shape[2], v.shape[2]};
  std::vector<int64_t> slots;
  for (int64_t b = 0; b < n_blocks; ++b) {
    const KvBlock block{
        .block = static_cast<int32_t>(n_blocks - 1 - b),
        .n_tokens = static_cast<int32_t>(std::min(block_size, keys_.n - b * block_size)),
        .first_position = keys_.first + b * block_size};
    for (int64_t i = 0; i < block.n_tokens; ++i) slots.push_back(block.block * block_size + i);
    blocks_.push_back(block);
  }
  ThreadPool pool(1, false);
  write_kv(rows_of(k, keys_.first, keys_.n), rows_of(v, keys_.first, keys_.n), kv_, slots, pool);
  const int64_t n_heads = q_.shape()[1];
  for (int64_t h = 0; h < n_heads; ++h) {
    head_to_kv_.push_back(static_cast<int32_t>(h / (n_heads / n_kv_heads)));
  }
  if (c.value("use_sinks", false)) {
    sinks_ = Tensor(DType::F32, {n_heads});
    for (int64_t h = 0; h < n_heads; ++h) {
      put(sinks_, h, static_cast<float>(tensors.at("sinks").values[static_cast<size_t>(h)]));
    }
  }
}

inline AttentionArgs UnitCase::args(TensorView out, TensorView lse) {
  sequence_ = {0, rows_.n, {&rows_, 1}, blocks_, {&keys_, 1}};
  const bool has_window = case_.contains("window") && !case_.at("window").is_null();
  return {.q = q_,
          .kv = kv_,
          .sequences = {&sequence_, 1},
          .window = has_window ? case_.at("window").get<int64_t>() : 0,
          .scale = case_.at("scale").get<float>(),
          .softcap = case_.value("softcap", 0.0F),
          .head_to_kv = head_to_kv_,
          .sinks = sinks_,
          .out = out,
          .lse = lse};
}

inline void expect_near(TensorView got, const ReferenceTensor& want, const std::string& what) {
  ASSERT_EQ(static_cast<int64_t>(want.values.size()), got.n_elements()) << what;
  for (size_t i = 0; i < want.values.size(); ++i) {
    const double x = get(got, static_cast<int64_t>(i));
    if (std::isinf(want.values[i])) {
      ASSERT_EQ(x, want.values[i]) << what << " " << i;
    } else {
      ASSERT_NEAR(x, want.values[i], 1e-5) << what << " " << i;
    }
  }
}

// The references' log-sum-exp counts the sink.
inline void add_sinks(TensorView lse, TensorView sinks) {
  for (int64_t i = 0; i < lse.n_elements(); ++i) {
    const double sink = get(sinks, i % sinks.n_elements());
    put(lse, i, static_cast<float>(std::log(std::exp(get(lse, i)) + std::exp(sink))));
  }
}

inline nlohmann::json cases() {
  std::ifstream file(units + "attention.json");
  return nlohmann::json::parse(file).at("cases");
}

}  // namespace testbed::cpu
