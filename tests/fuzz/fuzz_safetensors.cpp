// Fuzzes the safetensors header: any bytes give a parsed file or a WeightsError.
#include <cstddef>
#include <cstdint>

#include "kernels/base/errors.hpp"
#include "runtime/weights/safetensors_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto file =
        testbed::SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
    unsigned sum = 0;
    for (const auto& [name, tensor] : file.tensors())
      for (const std::byte b : tensor.data) sum += std::to_integer<unsigned>(b);
    volatile unsigned sink = sum;  // the bytes must be readable
    static_cast<void>(sink);
  } catch (const testbed::WeightsError&) {
  }
  return 0;
}
