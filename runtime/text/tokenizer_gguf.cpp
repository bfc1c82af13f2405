#include <fmt/format.h>

#include <utility>

#include "kernels/base/errors.hpp"
#include "runtime/text/tokenizer_readers.hpp"

namespace testbed {
namespace {

// What a name in tokenizer.ggml.pre stands for: the pre-tokenizer of the tokenizer.json that the
// file was converted from, except "default", which is the converter's own rule.
struct Family {
  std::vector<PreTokenizer> steps;
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;
};

PreTokenizer isolate(const char* pattern) {
  return {pattern, PreTokenizer::Behavior::isolated, false};
}

constexpr auto llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr auto qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

Family family_of(const GgufTokenizerMetadata& metadata) {
  const std::string& pre = metadata.pre;
  if (pre == "smollm") return {.steps = {single_digits, gpt2_split}};
  if (pre == "gpt-2") return {.steps = {gpt2_split}};
  if (pre == "qwen2") return {.steps = {isolate(qwen2_pattern)}, .nfc = true};
  if (pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3") {
    return {.steps = {isolate(llama3_pattern)}, .ignore_merges = true, .add_bos = true};
  }
  if (pre == "default") {
    return {.steps = {isolate(R"([\p{P}\$\+<=>\^~\|]+)"),
                      gpt2_split,
                      isolate(R"(\p{N}+)"),
                      isolate("[0-9][0-9][0-9]")}};
  }
  throw ConfigError(
      fmt::format("{}: tokenizer.ggml.pre is '{}'; known: smollm, gpt-2, qwen2, llama-bpe (llama3, "
                  "llama-v3), default; the model runs with token ids",
                  metadata.source,
                  pre));
}

TokenKind kind_of(const GgufTokenizerMetadata& metadata, size_t i) {
  switch (metadata.token_type[i]) {
    case 1:  // normal
    case 2:  // unknown
    case 5:  // unused
      return TokenKind::normal;
    case 3:
      return TokenKind::control;
    case 4:
      return TokenKind::added;
    default:
      throw ConfigError(
          fmt::format("{}: tokenizer.ggml.token_type of token {} ('{}') is {}; a byte-level "
                      "vocabulary has 1 to 5",
                      metadata.source,
                      i,
                      metadata.tokens[i],
                      metadata.token_type[i]));
  }
}

}  // namespace

TokenizerSpec tokenizer_from_gguf(const GgufTokenizerMetadata& metadata) {
  if (metadata.model != "gpt2") {
    throw ConfigError(
        fmt::format("{}: tokenizer.ggml.model is '{}'; only 'gpt2' (byte-level BPE) is supported; "
                    "the model runs with token ids",
                    metadata.source,
                    metadata.model));
  }
  if (metadata.token_type.size() != metadata.tokens.size()) {
    throw ConfigError(fmt::format("{}: tokenizer.ggml has {} tokens but {} token types",
                                  metadata.source,
                                  metadata.tokens.size(),
                                  metadata.token_type.size()));
  }
  Family family = family_of(metadata);
  TokenizerSpec spec;
  spec.source = metadata.source;
  spec.tokens = metadata.tokens;
  for (size_t i = 0; i < spec.tokens.size(); ++i) spec.kinds.push_back(kind_of(metadata, i));
  for (size_t i = 0; i < metadata.merges.size(); ++i) {
    const std::string& merge = metadata.merges[i];
    const size_t space = merge.find(' ');
    if (space == std::string::npos) {
      throw ConfigError(fmt::format(
          "{}: tokenizer.ggml.merges[{}] is '{}', not two tokens", metadata.source, i, merge));
    }
    spec.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  spec.steps = std::move(family.steps);
  spec.nfc = family.nfc;
  spec.ignore_merges = family.ignore_merges;
  spec.bos_id = metadata.bos_id;
  spec.eos_id = metadata.eos_id;
  spec.add_bos = metadata.add_bos_token.value_or(family.add_bos);
  return spec;
}

}  // namespace testbed
