// Builds small safetensors and GGUF files byte by byte, so that tests can break any field, and the
// configurations of the fixture models that the weights tests open.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/errors.hpp"
#include "runtime/config/model_config.hpp"
#include "runtime/weights/weight_source.hpp"

namespace testbed::test {

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename T>
std::string little_endian(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

// A safetensors file of this header and data.
inline std::string safetensors(const std::string& header, const std::string& data) {
  return little_endian<uint64_t>(header.size()) + header + data;
}

// One header entry: "name":{"dtype":...}.
inline std::string entry(const std::string& name,
                         const std::string& dtype,
                         const std::string& shape,
                         uint64_t begin,
                         uint64_t end) {
  return fmt::format(
      R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin, end);
}

// A header of these entries.
inline std::string header(const std::vector<std::string>& entries) {
  return fmt::format("{{{}}}", fmt::join(entries, ","));
}

// A GGUF file in the making. Counts follow what was added; the bytes may be changed afterwards.
class GgufBuilder {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;

  static std::string string(const std::string& text) {
    return little_endian<uint64_t>(text.size()) + text;
  }
  // `encoded` is the value after its type.
  GgufBuilder& metadata(const std::string& key, uint32_t type, const std::string& encoded) {
    ++n_metadata_;
    metadata_ += string(key) + little_endian(type) + encoded;
    return *this;
  }
  GgufBuilder& text(const std::string& key, const std::string& value) {
    return metadata(key, 8, string(value));
  }
  GgufBuilder& u32(const std::string& key, uint32_t value) {
    return metadata(key, 4, little_endian(value));
  }
  GgufBuilder& u16(const std::string& key, uint16_t value) {
    return metadata(key, 2, little_endian(value));
  }
  GgufBuilder& raw_tensor(const std::string& name,
                          const std::vector<uint64_t>& dims,
                          uint32_t type,
                          uint64_t offset) {
    ++n_tensors_;
    infos_ += string(name) + little_endian(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) infos_ += little_endian(dim);
    infos_ += little_endian(type) + little_endian(offset);
    return *this;
  }
  // dims fastest first, data after what is there already.
  GgufBuilder& tensor(const std::string& name,
                      const std::vector<uint64_t>& dims,
                      uint32_t type,
                      const std::string& data) {
    raw_tensor(name, dims, type, data_.size());
    data_ += data;
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    return *this;
  }
  std::string header() const {
    return std::string("GGUF") + little_endian(version) + little_endian(n_tensors_) +
           little_endian(n_metadata_) + metadata_ + infos_;
  }
  std::string bytes() const {
    std::string out = header();
    out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data_;
  }

 private:
  uint64_t n_metadata_ = 0;
  uint64_t n_tensors_ = 0;
  std::string metadata_;
  std::string infos_;
  std::string data_;
};

// what() of the WeightsError that `action` throws; "" if it throws none.
inline std::string weights_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const WeightsError& error) {
    return error.what();
  }
  return "";
}

// A folder that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "testbed-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(TESTBED_SOURCE_DIR) / "tests/fixtures" / name;
}

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Sizes of the fixture models, as their config.json has them (the reader of which has its own
// tests).
inline ModelConfig fixture_config(const std::string& name) {
  ModelConfig c;
  c.name = name;
  const auto sizes =
      [&](int64_t layers, int64_t d, int64_t heads, int64_t kv, int64_t ff, int64_t vocab) {
        c.n_layers = layers;
        c.d_model = d;
        c.n_heads = heads;
        c.n_kv_heads = kv;
        c.head_dim = 16;
        c.d_ff = ff;
        c.vocab_size = vocab;
        c.layer_windows.assign(static_cast<size_t>(layers), 0);
      };
  if (name == "llama3_gqa") {
    sizes(4, 128, 8, 2, 192, 512);
    c.rope.kind = RopeKind::llama3;
    c.rope.theta = 500000.0;
    c.rope.factor = 8.0;
    c.rope.original_max_positions = 64;
  } else if (name == "llama_5layers") {
    sizes(5, 64, 4, 2, 168, 320);
  } else if (name == "llama_mha_f32") {
    sizes(2, 64, 8, 8, 160, 384);
    c.head_dim = 16;
    c.stored_dtype = DType::F32;
  } else if (name == "mistral_swa") {
    sizes(3, 96, 8, 2, 192, 512);
  } else if (name == "qwen2") {
    sizes(3, 128, 8, 2, 160, 600);
    c.tied_embeddings = true;
    c.qkv_bias = true;
  } else if (name == "qwen3") {
    sizes(3, 64, 8, 4, 192, 512);
    c.tied_embeddings = true;
    c.qk_norm = true;
  } else if (name == "smollm_tied") {
    sizes(3, 144, 9, 3, 240, 1003);
    c.tied_embeddings = true;
  } else {
    throw std::runtime_error("no fixture " + name);
  }
  return c;
}

// All of a tensor as dtype.
inline Tensor read_all(const WeightSource& source, const std::string& name, DType dtype) {
  const Shape shape = source.find(name).value().shape;
  Tensor out(dtype, shape);
  const int64_t rows = shape.rank() == 1 ? 1 : shape[0];
  source.read(name, {0, rows}, {0, shape[-1]}, out.view());
  return out;
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.n_bytes() == b.n_bytes() &&
         std::memcmp(a.data(), b.data(), static_cast<size_t>(a.n_bytes())) == 0;
}

}  // namespace testbed::test
