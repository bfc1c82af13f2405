// Fuzzes the GGUF parser and its typed metadata access: any bytes give a value or a WeightsError.
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/base/errors.hpp"
#include "runtime/weights/gguf_file.hpp"

namespace {

using testbed::GgufFile;

// Calls every getter on `key`; a wrong type is one of the outcomes.
void read_metadata(const GgufFile& file, const std::string& key) {
  const auto attempt = [](const auto& get) {
    try {
      get();
    } catch (const testbed::WeightsError&) {
    }
  };
  attempt([&] { static_cast<void>(file.find_string(key)); });
  attempt([&] { static_cast<void>(file.find_int(key)); });
  attempt([&] { static_cast<void>(file.find_float(key)); });
  attempt([&] { static_cast<void>(file.find_bool(key)); });
  attempt([&] { static_cast<void>(file.find_strings(key)); });
  attempt([&] { static_cast<void>(file.find_ints(key)); });
  attempt([&] { static_cast<void>(file.find_floats(key)); });
  attempt([&] { static_cast<void>(file.find_bools(key)); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const GgufFile file = GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
    for (const std::string& key : file.keys()) read_metadata(file, key);
    unsigned sum = 0;
    for (const testbed::GgufTensor& tensor : file.tensors())
      for (const std::byte b : tensor.data) sum += std::to_integer<unsigned>(b);
    volatile unsigned sink = sum;  // the bytes must be readable
    static_cast<void>(sink);
  } catch (const testbed::WeightsError&) {
  }
  return 0;
}
