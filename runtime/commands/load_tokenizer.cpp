#include "runtime/commands/load_tokenizer.hpp"

#include <filesystem>

#include "kernels/base/errors.hpp"
#include "runtime/text/tokenizer_readers.hpp"
#include "runtime/weights/gguf_file.hpp"

namespace testbed {
namespace {

std::unique_ptr<Tokenizer> from_gguf(const GgufFile& file) {
  const std::optional<std::string> model = file.find_string("tokenizer.ggml.model");
  if (model != "gpt2") return nullptr;
  const auto id = [&](const char* key) -> std::optional<int32_t> {
    const std::optional<int64_t> value = file.find_int(std::string("tokenizer.ggml.") + key);
    return value ? std::optional(static_cast<int32_t>(*value)) : std::nullopt;
  };
  GgufTokenizerMetadata metadata;
  metadata.source = file.name();
  metadata.model = *model;
  metadata.pre = file.find_string("tokenizer.ggml.pre").value_or("default");
  metadata.tokens = file.get_strings("tokenizer.ggml.tokens");
  for (const int64_t type :
       file.find_ints("tokenizer.ggml.token_type").value_or(std::vector<int64_t>{})) {
    metadata.token_type.push_back(static_cast<int32_t>(type));
  }
  metadata.merges = file.get_strings("tokenizer.ggml.merges");
  metadata.bos_id = id("bos_token_id");
  metadata.eos_id = id("eos_token_id");
  metadata.add_bos_token = file.find_bool("tokenizer.ggml.add_bos_token");
  return std::make_unique<Tokenizer>(tokenizer_from_gguf(metadata));
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const ModelLocation& location) {
  switch (location.kind) {
    case ModelKind::preset:
      return nullptr;
    case ModelKind::gguf:
      return from_gguf(GgufFile::open(location.path));
    case ModelKind::hugging_face: {
      const std::filesystem::path folder = std::filesystem::is_directory(location.path)
                                               ? location.path
                                               : location.path.parent_path();
      const std::filesystem::path file = folder / "tokenizer.json";
      if (!std::filesystem::exists(file)) return nullptr;
      return std::make_unique<Tokenizer>(tokenizer_from_json(file));
    }
  }
  return nullptr;
}

}  // namespace testbed
