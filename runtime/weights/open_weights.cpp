// Chooses the reader of a path.
#include <fmt/format.h>

#include <cstring>

#include "kernels/base/errors.hpp"
#include "runtime/weights/mapped_file.hpp"
#include "runtime/weights/weight_source.hpp"

namespace testbed {

std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path,
                                           const ModelConfig& config) {
  if (!std::filesystem::exists(path))
    throw WeightsError(fmt::format("{}: no such file or folder", path.string()));
  if (std::filesystem::is_directory(path) || path.extension() == ".safetensors")
    return open_safetensors(path, config);
  const MappedFile file(path);
  const bool has_magic =
      file.bytes().size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0;
  if (has_magic || path.extension() == ".gguf") return open_gguf(path, config);
  throw WeightsError(fmt::format(
      "{}: is neither a .safetensors file, a .gguf file nor a folder with model.safetensors",
      path.string()));
}

}  // namespace testbed
