// Format: https://github.com/huggingface/tokenizers (serialized by tokenizers >= 0.13).
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "kernels/base/errors.hpp"
#include "runtime/text/tokenizer_readers.hpp"

namespace testbed {
namespace {

using Json = nlohmann::json;

constexpr int64_t max_tokens = int64_t{1} << 24;  // far above any vocabulary; bounds the id table

class JsonReader {
 public:
  explicit JsonReader(const std::string& source) { spec_.source = source; }

  TokenizerSpec read(const Json& root) {
    read_model(root.at("model"));
    read_added_tokens(root);
    for (const Json& step : steps(root, "normalizer", "normalizers")) read_normalizer(step);
    for (const Json& step : steps(root, "pre_tokenizer", "pretokenizers")) read_pre_tokenizer(step);
    if (!byte_level_) fail("pre_tokenizer has no ByteLevel step: not a byte-level vocabulary");
    for (const Json& step : steps(root, "post_processor", "processors")) read_post_processor(step);
    read_decoder(part(root, "decoder"));
    return std::move(spec_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw ConfigError(fmt::format("{}: {}", spec_.source, message));
  }
  [[noreturn]] void fail_kind(std::string_view what, const Json& kind) const {
    fail(fmt::format("{} {} is not supported", what, kind.dump()));
  }

  // A member that may be absent: null then.
  static const Json& part(const Json& object, const char* key) {
    static const Json null;
    const auto it = object.find(key);
    return it == object.end() ? null : *it;
  }
  // The steps of a part: none, the one, or those of a Sequence (one inside another is refused).
  static Json steps(const Json& root, const char* key, const char* sequence_key) {
    const Json& whole = part(root, key);
    if (whole.is_null()) return Json::array();
    if (part(whole, "type") != "Sequence") return Json::array({whole});
    return whole.at(sequence_key);
  }
  static bool flag(const Json& object, const char* key, bool absent) {
    const Json& value = part(object, key);
    return value.is_null() ? absent : value.get<bool>();
  }

  int64_t integer(const Json& value) const {
    if (!value.is_number_integer()) fail(fmt::format("{} is not a token id", value.dump()));
    return value.get<int64_t>();
  }
  // The id of a token that must be there.
  int32_t known_id(const Json& value) const {
    const int64_t id = integer(value);
    if (id < 0 || id >= static_cast<int64_t>(spec_.tokens.size())) {
      fail(fmt::format("id {} is outside the {} tokens", id, spec_.tokens.size()));
    }
    return static_cast<int32_t>(id);
  }

  void set_token(int64_t id, const std::string& token, TokenKind kind) {
    if (id < 0 || id >= max_tokens) fail(fmt::format("token '{}' has id {}", token, id));
    const auto index = static_cast<size_t>(id);
    if (index >= spec_.tokens.size()) {
      spec_.tokens.resize(index + 1);
      spec_.kinds.resize(index + 1, TokenKind::normal);
    }
    if (!spec_.tokens[index].empty() && spec_.tokens[index] != token) {
      fail(fmt::format("id {} is both '{}' and '{}'", id, spec_.tokens[index], token));
    }
    spec_.tokens[index] = token;
    spec_.kinds[index] = kind;
  }

  void read_model(const Json& model) {
    if (part(model, "type") != "BPE") fail_kind("model.type", part(model, "type"));
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = part(model, key);
      const bool none = value.is_null() || value == "" || value == 0.0;
      if (!none) fail_kind(fmt::format("model.{}", key), value);
    }
    if (flag(model, "byte_fallback", false)) fail("model.byte_fallback is not supported");
    spec_.ignore_merges = flag(model, "ignore_merges", false);
    for (const auto& [token, id] : model.at("vocab").items()) {
      set_token(integer(id), token, TokenKind::normal);
    }
    for (const Json& merge : model.at("merges")) read_merge(merge);
    read_unknown(model);
  }

  void read_unknown(const Json& model) {
    const Json& unknown = part(model, "unk_token");
    if (unknown.is_null()) return;
    if (flag(model, "fuse_unk", false)) fail("model.fuse_unk is not supported");
    spec_.unk_id = known_id(model.at("vocab").at(unknown.get<std::string>()));
  }

  void read_merge(const Json& merge) {
    if (merge.is_array() && merge.size() == 2) {
      spec_.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      return;
    }
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    if (space == std::string::npos) {
      fail(fmt::format("merge {} is '{}', not two tokens", spec_.merges.size(), text));
    }
    spec_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }

  void read_added_tokens(const Json& root) {
    for (const Json& token : part(root, "added_tokens")) {
      const auto content = token.at("content").get<std::string>();
      for (const char* key : {"lstrip", "rstrip", "single_word"}) {
        if (flag(token, key, false)) {
          fail(fmt::format("added token '{}': {} is not supported", content, key));
        }
      }
      const bool special = flag(token, "special", false);
      set_token(
          token.at("id").get<int64_t>(), content, special ? TokenKind::control : TokenKind::added);
    }
  }

  void read_normalizer(const Json& normalizer) {
    if (part(normalizer, "type") == "NFC") {
      spec_.nfc = true;
    } else {
      fail_kind("normalizer", part(normalizer, "type"));
    }
  }

  void read_pre_tokenizer(const Json& step) {
    const Json& type = part(step, "type");
    // What ByteLevel makes is byte-level spelling, which a later split would not see as text.
    if (byte_level_) fail_kind("pre_tokenizer after ByteLevel", type);
    if (type == "ByteLevel") {
      read_byte_level(step);
    } else if (type == "Digits") {
      const bool individual = flag(step, "individual_digits", false);
      spec_.steps.push_back(
          individual ? single_digits
                     : PreTokenizer{R"(\p{N}+)", PreTokenizer::Behavior::isolated, false});
    } else if (type == "Split") {
      read_split(step);
    } else {
      fail_kind("pre_tokenizer", type);
    }
  }

  void read_byte_level(const Json& step) {
    byte_level_ = true;
    spec_.add_prefix_space = flag(step, "add_prefix_space", true);
    // After other steps every piece would get a space, not the text.
    if (spec_.add_prefix_space && !spec_.steps.empty()) {
      fail("pre_tokenizer ByteLevel: add_prefix_space after other steps is not supported");
    }
    if (flag(step, "use_regex", true)) spec_.steps.push_back(gpt2_split);
  }

  void read_split(const Json& step) {
    const Json& pattern = step.at("pattern");
    if (!pattern.contains("Regex")) fail_kind("pre_tokenizer Split by", pattern);
    PreTokenizer split{pattern["Regex"].get<std::string>()};
    const Json& behavior = step.at("behavior");
    if (behavior == "Removed") {
      split.behavior = PreTokenizer::Behavior::removed;
    } else if (behavior != "Isolated") {
      fail_kind("pre_tokenizer Split: behavior", behavior);
    }
    split.invert = flag(step, "invert", false);
    spec_.steps.push_back(std::move(split));
  }

  void read_post_processor(const Json& processor) {
    const Json& type = part(processor, "type");
    if (type == "TemplateProcessing") {
      read_template(processor);
    } else if (type != "ByteLevel") {  // ByteLevel only trims offsets, which are not kept here
      fail_kind("post_processor", type);
    }
  }

  void read_template(const Json& processor) {
    const Json& single = processor.at("single");
    const bool bos = single.size() == 2 && single[0].contains("SpecialToken");
    const bool plain = single.size() == 1;
    if (!(bos || plain) || !single.back().contains("Sequence")) {
      fail_kind("post_processor TemplateProcessing", single);
    }
    if (plain) return;
    const auto name = single[0]["SpecialToken"].at("id").get<std::string>();
    const Json& ids = processor.at("special_tokens").at(name).at("ids");
    if (ids.size() != 1) fail_kind("post_processor TemplateProcessing: ids", ids);
    spec_.bos_id = known_id(ids[0]);
    spec_.add_bos = true;
  }

  void read_decoder(const Json& decoder) {
    if (decoder.is_null() || part(decoder, "type") == "ByteLevel") return;
    fail_kind("decoder", part(decoder, "type"));
  }

  TokenizerSpec spec_;
  bool byte_level_ = false;
};

}  // namespace

TokenizerSpec tokenizer_from_json_text(const std::string& text, const std::string& source) {
  try {
    return JsonReader(source).read(Json::parse(text));
  } catch (const Json::exception& e) {
    throw ConfigError(fmt::format("{}: not a usable tokenizer.json: {}", source, e.what()));
  }
}

TokenizerSpec tokenizer_from_json(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || !text) throw ConfigError(fmt::format("{}: cannot be read", path.string()));
  return tokenizer_from_json_text(text.str(), path.string());
}

}  // namespace testbed
