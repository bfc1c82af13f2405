// A one-layer model whose every element has its own value, and comparisons of sources with it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/weights/tensor_names.hpp"
#include "tests/unit/weights_builders.hpp"

namespace testbed::test {

// One-layer toy: 2 heads of 4, 1 KV head, d_model 8, d_ff 6, vocabulary 5.
inline ModelConfig toy_config() {
  ModelConfig c;
  c.family = "llama";
  c.n_layers = 1;
  c.d_model = 8;
  c.n_heads = 2;
  c.n_kv_heads = 1;
  c.head_dim = 4;
  c.d_ff = 6;
  c.vocab_size = 5;
  c.layer_windows = {0};
  c.stored_dtype = DType::F32;
  return c;
}

struct ToyTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using ToyModel = std::map<std::string, ToyTensor>;

// Every element of the toy has its own value.
inline ToyModel toy_model(const ModelConfig& config) {
  ToyModel model;
  float next = 0;
  for (const TensorSpec& spec : required_tensors(config)) {
    ToyTensor& t = model[spec.name];
    for (int i = 0; i < spec.shape.rank(); ++i) t.shape.push_back(spec.shape[i]);
    for (int64_t i = 0; i < spec.shape.n_elements(); ++i) t.values.push_back(next++);
  }
  return model;
}

inline std::string float_bytes(const std::vector<float>& values) {
  std::string out;
  for (const float v : values) out += test::little_endian(v);
  return out;
}

inline std::string toy_safetensors(const ToyModel& model) {
  std::string data;
  std::vector<std::string> entries;
  for (const auto& [name, t] : model) {
    const size_t begin = data.size();
    data += float_bytes(t.values);
    entries.push_back(entry(name, "F32", nlohmann::json(t.shape).dump(), begin, data.size()));
  }
  return test::safetensors(test::header(entries), data);
}

// Joins tensors of equal width under a new name, and removes them.
inline void fuse(ToyModel& model, const std::vector<std::string>& parts, const std::string& fused) {
  ToyTensor out;
  for (const std::string& part : parts) {
    const ToyTensor t = model.at(part);
    if (out.shape.empty())
      out.shape = t.shape;
    else
      out.shape[0] += t.shape[0];
    out.values.insert(out.values.end(), t.values.begin(), t.values.end());
    model.erase(part);
  }
  model[fused] = out;
}

inline std::vector<float> read_floats(const WeightSource& source,
                                      const std::string& name,
                                      IndexRange rows,
                                      IndexRange cols) {
  const Tensor out(DType::F32, Shape{rows.size(), cols.size()});
  source.read(name, rows, cols, out.view());
  return {out.as<float>(), out.as<float>() + out.n_elements()};
}

inline std::vector<float> read_whole(const WeightSource& source, const std::string& name) {
  const Tensor t = read_all(source, name, DType::F32);
  return {t.as<float>(), t.as<float>() + t.n_elements()};
}

// [rows] x [cols] of a whole matrix.
inline std::vector<float> slice_of(const std::vector<float>& whole,
                                   int64_t n_cols,
                                   IndexRange rows,
                                   IndexRange cols) {
  std::vector<float> out;
  for (int64_t row = rows.begin; row < rows.end; ++row)
    out.insert(out.end(),
               whole.begin() + row * n_cols + cols.begin,
               whole.begin() + row * n_cols + cols.end);
  return out;
}

// Every tensor of `source`, whole and in slices, is that of the toy model.
inline void expect_toy(const WeightSource& source,
                       const ModelConfig& config,
                       const ToyModel& model) {
  for (const std::string& name : tensor_names(config)) {
    const ToyTensor& t = model.at(name);
    const bool vector = t.shape.size() == 1;
    const int64_t n_rows = vector ? 1 : t.shape[0];
    const int64_t n_cols = t.shape.back();
    EXPECT_EQ(read_floats(source, name, {0, n_rows}, {0, n_cols}), t.values) << name;
    for (int64_t row = 0; row < n_rows; ++row)
      for (int64_t col = 0; col < n_cols; ++col)
        ASSERT_EQ(read_floats(source, name, {row, row + 1}, {col, col + 1}),
                  std::vector<float>{t.values[static_cast<size_t>(row * n_cols + col)]})
            << name << " " << row << " " << col;
  }
}

inline void expect_same_model(const ModelConfig& config,
                              const WeightSource& a,
                              const WeightSource& b,
                              DType dtype) {
  for (const std::string& name : tensor_names(config))
    EXPECT_TRUE(same_bytes(read_all(a, name, dtype), read_all(b, name, dtype))) << name;
}

}  // namespace testbed::test
