// Reads the unit references of tests/fixtures/units: a safetensors file whole, F32 and F64 as
// double.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace testbed {

struct ReferenceTensor {
  std::vector<int64_t> shape;
  std::vector<double> values;
};

inline std::map<std::string, ReferenceTensor> read_reference_tensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) throw std::runtime_error("cannot read " + path);
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const char* data = bytes.data() + sizeof header_bytes + header_bytes;
  std::map<std::string, ReferenceTensor> tensors;
  const auto header = nlohmann::json::parse(bytes.substr(sizeof header_bytes, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    ReferenceTensor& tensor = tensors[name];
    tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
    const auto begin = entry.at("data_offsets").at(0).get<size_t>();
    const auto end = entry.at("data_offsets").at(1).get<size_t>();
    const bool is_f64 = entry.at("dtype") == "F64";
    if (!is_f64 && entry.at("dtype") != "F32") throw std::runtime_error(name + ": dtype");
    for (size_t at = begin; at < end; at += is_f64 ? 8 : 4) {
      double f64 = 0;
      float f32 = 0;
      std::memcpy(is_f64 ? static_cast<void*>(&f64) : &f32, data + at, is_f64 ? 8 : 4);
      tensor.values.push_back(is_f64 ? f64 : static_cast<double>(f32));
    }
  }
  return tensors;
}

}  // namespace testbed
