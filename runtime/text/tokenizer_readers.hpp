// The two sources of a TokenizerSpec: Hugging Face's tokenizer.json and GGUF metadata. What this
// version cannot reproduce exactly is refused with a ConfigError that names the file and the kind;
// such a model still runs from token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.hpp"

namespace testbed {

// Supported: model BPE (merges "a b" or ["a", "b"]); pre_tokenizer ByteLevel, Digits, Split by
// Regex (Isolated, Removed, invert), Sequence of these, with a ByteLevel among them; normalizer
// null or NFC; post_processor null, ByteLevel, or TemplateProcessing with at most a bos in front;
// decoder null or ByteLevel; added tokens without lstrip, rstrip, single_word. eos_id is not in
// this file and stays empty; bos_id is the template's.
TokenizerSpec tokenizer_from_json(const std::filesystem::path& path);

// The same from the file's text; `source` is used in errors.
TokenizerSpec tokenizer_from_json_text(const std::string& text, const std::string& source);

// The keys tokenizer.ggml.* that matter here.
struct GgufTokenizerMetadata {
  std::string source;                 // file, for errors
  std::string model;                  // "gpt2" is byte-level BPE, the only one supported
  std::string pre;                    // name of the pre-tokenizer
  std::vector<std::string> tokens;    // byte-level spelling
  std::vector<int32_t> token_type;    // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused
  std::vector<std::string> merges;    // "a b", by rank
  std::optional<int32_t> bos_id;      // bos_token_id
  std::optional<int32_t> eos_id;      // eos_token_id
  std::optional<bool> add_bos_token;  // absent: as the pre-tokenizer's family does
};

TokenizerSpec tokenizer_from_gguf(const GgufTokenizerMetadata& metadata);

}  // namespace testbed
