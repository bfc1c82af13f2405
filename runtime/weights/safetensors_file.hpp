// SafetensorsFile: the header of one .safetensors file, checked, and its mapped tensor bytes.
// Format: https://huggingface.co/docs/safetensors (8-byte header length, JSON header, data).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/weights/mapped_file.hpp"

namespace testbed {

struct SafetensorsTensor {
  std::string dtype;                // as spelled in the header, known or not: "BF16", "F8_E4M3"
  std::vector<int64_t> shape;       // empty for a scalar
  std::span<const std::byte> data;  // exactly its bytes; valid as long as the file
};

class SafetensorsFile {
 public:
  // Throw WeightsError naming the file, the tensor and what is wrong with the header.
  static SafetensorsFile open(const std::filesystem::path& path);
  // From bytes that outlive the result; `name` is used in errors.
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& name);

  const std::string& name() const { return name_; }
  const std::map<std::string, SafetensorsTensor, std::less<>>& tensors() const { return tensors_; }

 private:
  std::string name_;
  std::map<std::string, SafetensorsTensor, std::less<>> tensors_;
  std::shared_ptr<const MappedFile> map_;
};

}  // namespace testbed
