// NVML's shared object while it is in use: opened and initialised, and its functions.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kernels/cuda/nvml_abi.hpp"

namespace testbed {

class NvmlLibrary {
 public:
  // nullptr and the reason if it cannot be opened or does not start.
  static std::shared_ptr<const NvmlLibrary> open(const std::string& path, std::string& why_not);
  ~NvmlLibrary();
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  const nvml_abi::Functions& functions() const { return functions_; }

  // function(args..., &value) as an optional: nullopt if it is missing or fails.
  template <typename Value, typename Function, typename... Args>
  static std::optional<Value> get(Function function, Args... args) {
    Value value{};
    if (function == nullptr || function(args..., &value) != nvml_abi::success) return std::nullopt;
    return value;
  }
  // function(args..., text, size)
  template <typename Function, typename... Args>
  static std::optional<std::string> get_text(Function function, Args... args) {
    char text[256] = {};  // the longest that NVML documents is 96
    if (function == nullptr || function(args..., text, sizeof text) != nvml_abi::success) {
      return std::nullopt;
    }
    text[sizeof text - 1] = '\0';
    return std::string(text);
  }

 private:
  NvmlLibrary(void* handle, const nvml_abi::Functions& functions)
      : handle_(handle), functions_(functions) {}

  void* handle_;
  nvml_abi::Functions functions_;
};

}  // namespace testbed
