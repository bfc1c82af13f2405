// The tokenizer against SmolLM2's reference vectors, through both readers, and at its edges.
#include "runtime/text/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/base/errors.hpp"
#include "runtime/text/byte_level.hpp"
#include "runtime/text/tokenizer_readers.hpp"
#include "runtime/text/utf8.hpp"
#include "tests/trials.hpp"

namespace testbed {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const std::string fixtures = TESTBED_SOURCE_DIR "/tests/fixtures/smollm2/";

Json load(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

std::string config_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "(no ConfigError)";
}

GgufTokenizerMetadata smollm2_metadata() {
  const Json json = load(fixtures + "tokenizer.json");
  GgufTokenizerMetadata metadata;
  metadata.source = "smollm2.gguf";
  metadata.model = "gpt2";
  metadata.pre = "smollm";
  metadata.bos_id = 1;
  metadata.eos_id = 2;
  metadata.add_bos_token = false;
  metadata.merges = json["model"]["merges"].get<std::vector<std::string>>();
  const Json& vocab = json["model"]["vocab"];
  metadata.tokens.resize(vocab.size());
  metadata.token_type.assign(vocab.size(), 1);
  for (const auto& [token, id] : vocab.items()) metadata.tokens[id.get<size_t>()] = token;
  for (const Json& token : json["added_tokens"]) metadata.token_type[token["id"].get<size_t>()] = 3;
  return metadata;
}

const Tokenizer& smollm2() {
  static const Tokenizer tokenizer(tokenizer_from_json(fixtures + "tokenizer.json"));
  return tokenizer;
}

// A vocabulary of all 256 bytes, then the given tokens (byte-level spelling), as a tokenizer.json.
Json small_json(const std::vector<std::string>& more, const Json& merges) {
  Json vocab = Json::object();
  for (int b = 0; b < 256; ++b)
    vocab[byte_level_spelling(std::string(1, static_cast<char>(b)))] = b;
  int id = 256;
  for (const std::string& token : more) vocab[token] = id++;
  return {
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}},
      {"added_tokens", Json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}}};
}

Tokenizer small(const Json& json) {
  return Tokenizer(tokenizer_from_json_text(json.dump(), "small.json"));
}

std::string read_error(const Json& json) {
  return config_error([&] { small(json); });
}

// The vector with superscripts and other numerals too: its ids follow the model's own rule (every
// \p{N} by itself); hf_gguf_ids is what another loader of the same file makes of it.
void expect_reference(const Tokenizer& tokenizer) {
  const Json vectors = load(fixtures + "tokenizer_vectors.json")["vectors"];
  ASSERT_EQ(vectors.size(), 37U);
  for (const Json& v : vectors) {
    const auto text = v["text"].get<std::string>();
    const auto ids = v["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.encode(text), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids), v["decoded"].get<std::string>()) << text;
    if (v.contains("hf_gguf_ids")) {
      EXPECT_EQ(tokenizer.decode(v["hf_gguf_ids"].get<Ids>()), text);
    }
  }
}

TEST(Tokenizer, matches_the_reference_from_json) { expect_reference(smollm2()); }

TEST(Tokenizer, matches_the_reference_from_gguf) {
  const Tokenizer tokenizer(tokenizer_from_gguf(smollm2_metadata()));
  expect_reference(tokenizer);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_EQ(tokenizer.n_tokens(), 49152);
  EXPECT_TRUE(tokenizer.is_control(2));
  EXPECT_FALSE(tokenizer.is_control(504));
  EXPECT_FALSE(tokenizer.is_control(-1));
}

TEST(Tokenizer, empty_text) {
  EXPECT_THAT(smollm2().encode(""), ElementsAre());
  EXPECT_EQ(smollm2().decode({}), "");
}

TEST(Tokenizer, stream_holds_back_unfinished_characters) {
  const std::string text = "naïve 🙂👍🏽 世界 résumé Привет";
  const Ids ids = smollm2().encode(text);
  StreamDecoder stream(smollm2());
  std::string all;
  int held = 0;
  for (const int32_t id : ids) {
    const std::string part = stream.push(id);
    EXPECT_EQ(utf8_valid_prefix(part), part.size());
    EXPECT_EQ(part.find(utf8_replacement), std::string::npos);
    held += part.empty() ? 1 : 0;
    all += part;
  }
  EXPECT_GT(held, 0);  // some characters do span tokens
  EXPECT_EQ(all, text);
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, stream_replaces_what_can_not_become_a_character) {
  const Tokenizer tokenizer = small(small_json({}, Json::array()));
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push(0xBD), "");
  EXPECT_EQ(stream.push('a'),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(stream.push(0xFF), utf8_replacement);
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.finish(), utf8_replacement);
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push(256), utf8_replacement);  // no such token
  EXPECT_EQ(stream.push(-1), utf8_replacement);
}

TEST(Tokenizer, control_tokens_are_single_ids) {
  EXPECT_THAT(smollm2().encode("<|im_start|><|im_end|>"), ElementsAre(1, 2));
  EXPECT_EQ(smollm2().token_bytes(1), "<|im_start|>");
}

TEST(Tokenizer, longest_added_token_wins) {
  Json json = small_json({}, Json::array());
  json["added_tokens"] = {{{"id", 256}, {"content", "<a>"}, {"special", true}},
                          {{"id", 257}, {"content", "<a><b>"}, {"special", false}},
                          {{"id", 258}, {"content", "é "}, {"special", false}}};
  const Tokenizer tokenizer = small(json);
  EXPECT_THAT(tokenizer.encode("x<a><b><a>é <a"), ElementsAre('x', 257, 256, 258, '<', 'a'));
  EXPECT_EQ(tokenizer.decode(Ids{257, 258, 256}), "<a><b>é <a>");
  EXPECT_TRUE(tokenizer.is_control(256));
  EXPECT_FALSE(tokenizer.is_control(257));
}

TEST(Tokenizer, invalid_utf8_is_bytes) {
  const Tokenizer tokenizer = small(small_json({"ab"}, Json::array({"a b"})));
  EXPECT_THAT(tokenizer.encode("ab\xFF"
                               "ab\xE4\xBD"
                               "ab\xC0\xAF"),
              ElementsAre(256, 0xFF, 256, 0xE4, 0xBD, 256, 0xC0, 0xAF));
  EXPECT_THAT(tokenizer.encode("\xED\xA0\x80"), ElementsAre(0xED, 0xA0, 0x80));  // a surrogate
  EXPECT_EQ(tokenizer.decode(Ids{0xED, 0xA0, 0x80}), "\uFFFD\uFFFD\uFFFD");
}

TEST(Tokenizer, random_bytes_survive) {
  const Tokenizer tokenizer =
      small(small_json({"ab", "\u0120a"}, Json::array({"a b", "\u0120 a"})));
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (int i = 0; i < 64; ++i) text += static_cast<char>(random() & 0xFFU);
    std::string bytes;
    for (const int32_t id : tokenizer.encode(text)) bytes += tokenizer.token_bytes(id);
    EXPECT_EQ(bytes, text);
  }
}

TEST(Tokenizer, a_byte_without_token_is_refused_or_unknown) {
  EXPECT_THAT(config_error([] { smollm2().encode("a\xFF"); }), HasSubstr("byte 0xFF"));
  Json json = small_json({"<unk>"}, Json::array());
  json["model"]["vocab"].erase("z");
  json["model"]["unk_token"] = "<unk>";
  EXPECT_THAT(small(json).encode("az"), ElementsAre('a', 256));
}

TEST(Tokenizer, merges_in_both_spellings) {
  const std::vector<std::string> tokens = {"ab", "abc", "\u0120abc", "bc"};
  const Json strings = {"b c", "a b", "ab c", "a bc", "\u0120 abc"};
  Json pairs = Json::array();
  for (const Json& merge : strings) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    pairs.push_back(Json::array({text.substr(0, space), text.substr(space + 1)}));
  }
  for (const Json& merges : {strings, pairs}) {
    const Tokenizer tokenizer = small(small_json(tokens, merges));
    EXPECT_THAT(tokenizer.encode("abc abc ab"), ElementsAre(257, 258, ' ', 256));
  }
}

TEST(Tokenizer, equal_ranks_merge_leftmost_first) {
  const Tokenizer tokenizer = small(small_json({"aa", "aaaa"}, {"a a", "aa aa"}));
  EXPECT_THAT(tokenizer.encode("aaaaaaa"), ElementsAre(257, 256, 'a'));
}

TEST(Tokenizer, ignore_merges_takes_a_whole_piece) {
  Json json = small_json({"abc"}, Json::array());
  EXPECT_THAT(small(json).encode("abc"), ElementsAre('a', 'b', 'c'));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(small(json).encode("abc"), ElementsAre(256));
}

// A second; quadratic would be an hour, which the test's time limit does not give it.
TEST(Tokenizer, a_megabyte_is_not_quadratic) {
  constexpr size_t n_bytes = is_sanitized ? 1 << 16 : 1 << 20;
  std::string words;
  while (words.size() < n_bytes) words += "The capital of France is 1234, déjà vu.\n  ";
  const std::string one_word(n_bytes, 'a');
  const std::string blanks(n_bytes, ' ');
  for (const std::string& text : {words, one_word, blanks}) {
    EXPECT_EQ(smollm2().decode(smollm2().encode(text)), text);
  }
}

TEST(Tokenizer, splits_of_every_kind) {
  const Json all = {"a b", "b c", "1 2", "- -"};
  Json json = small_json({"ab", "bc", "12", "--"}, all);
  const auto encode = [&](const Json& split, const std::string& text) {
    json["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {split, {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    return small(json).encode(text);
  };
  const auto split = [](const char* pattern, const char* behavior, bool invert) {
    return Json{{"type", "Split"},
                {"pattern", {{"Regex", pattern}}},
                {"behavior", behavior},
                {"invert", invert}};
  };
  EXPECT_THAT(encode(split("b", "Isolated", false), "ab--ab"),
              ElementsAre('a', 'b', 259, 'a', 'b'));
  EXPECT_THAT(encode(split("--", "Removed", false), "ab--ab"), ElementsAre(256, 256));
  EXPECT_THAT(encode(split("[ab]+", "Removed", true), "ab--ab"), ElementsAre(256, 256));
  EXPECT_THAT(encode({{"type", "Digits"}, {"individual_digits", false}}, "12ab"),
              ElementsAre(258, 256));
  EXPECT_THAT(encode({{"type", "Digits"}, {"individual_digits", true}}, "12ab"),
              ElementsAre('1', '2', 256));
  EXPECT_THAT(config_error([&] { encode(split("(", "Isolated", false), ""); }),
              HasSubstr("pattern '('"));
  EXPECT_THAT(config_error([&] { encode(split("a", "Contiguous", false), ""); }),
              HasSubstr("\"Contiguous\""));
}

TEST(Tokenizer, llama3_groups_digits_and_adds_bos) {
  Json json = small_json({"12", "123", "<bos>"}, {"1 2", "12 3"});
  GgufTokenizerMetadata metadata;
  metadata.source = "llama3.gguf";
  metadata.model = "gpt2";
  metadata.pre = "llama-bpe";
  metadata.bos_id = 258;
  metadata.merges = json["model"]["merges"].get<std::vector<std::string>>();
  metadata.tokens.resize(259);
  metadata.token_type.assign(259, 1);
  metadata.token_type[258] = 3;
  for (const auto& [token, id] : json["model"]["vocab"].items())
    metadata.tokens[id.get<size_t>()] = token;
  EXPECT_THAT(Tokenizer(tokenizer_from_gguf(metadata)).encode("12312"), ElementsAre(258, 257, 256));
  metadata.add_bos_token = false;
  EXPECT_THAT(Tokenizer(tokenizer_from_gguf(metadata)).encode("12312"), ElementsAre(257, 256));
  metadata.pre = "qwen2";
  EXPECT_THAT(Tokenizer(tokenizer_from_gguf(metadata)).encode("123"), ElementsAre('1', '2', '3'));
  metadata.bos_id = 259;
  EXPECT_THAT(config_error([&] { Tokenizer(tokenizer_from_gguf(metadata)); }),
              HasSubstr("bos id 259 is outside the 259 tokens"));
}

TEST(Tokenizer, template_bos_is_added) {
  Json json = small_json({}, Json::array());
  json["added_tokens"] = {{{"id", 256}, {"content", "<s>"}, {"special", true}}};
  const Json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json special = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const Json tokens = {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}};
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", Json::array({special, sequence})},
                            {"special_tokens", tokens}};
  EXPECT_THAT(small(json).encode("a"), ElementsAre(256, 'a'));
  EXPECT_THAT(small(json).encode(""), ElementsAre(256));
  json["post_processor"]["single"] = Json::array({sequence});
  EXPECT_THAT(small(json).encode("a"), ElementsAre('a'));
  json["post_processor"]["single"] = Json::array({sequence, special});
  EXPECT_THAT(read_error(json), HasSubstr("TemplateProcessing"));
}

TEST(Tokenizer, nfc_models_refuse_text_that_may_not_be_nfc) {
  Json json = small_json({}, Json::array());
  json["normalizer"] = {{"type", "NFC"}};
  const Tokenizer tokenizer = small(json);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("café 世界 한국 Привет")), "café 世界 한국 Привет");
  for (const char* text : {"e\u0301", "\u212B", "\u1112\u1161", "\uF900", "x\u0323\u0307"}) {
    EXPECT_THAT(config_error([&] { tokenizer.encode(text); }), HasSubstr("NFC")) << text;
  }
}

TEST(Tokenizer, unknown_kinds_are_refused_by_name) {
  const Json good = small_json({}, Json::array());
  const auto with = [&](const char* pointer, const Json& value) {
    Json json = good;
    json[Json::json_pointer(pointer)] = value;
    return read_error(json);
  };
  EXPECT_EQ(read_error(good), "(no ConfigError)");
  EXPECT_THAT(with("/model/type", "Unigram"), AllOf(HasSubstr("small.json"), HasSubstr("Unigram")));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Metaspace"}}), HasSubstr("Metaspace"));
  EXPECT_THAT(with("/pre_tokenizer", nullptr), HasSubstr("ByteLevel"));
  EXPECT_THAT(
      with("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Sequence"}}}}}),
      HasSubstr("Sequence"));
  EXPECT_THAT(with("/normalizer", {{"type", "NFKC"}}), HasSubstr("NFKC"));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}}), HasSubstr("BertProcessing"));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("WordPiece"));
  EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("byte_fallback"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("</w>"));
  EXPECT_THAT(with("/model/merges", {"a b"}), HasSubstr("merge 0: there is no token 'ab'"));
  EXPECT_THAT(with("/model/merges", {"ab"}), HasSubstr("not two tokens"));
  EXPECT_THAT(with("/model/vocab/x", -1), HasSubstr("has id -1"));
  EXPECT_THAT(with("/model/vocab/x", 1.5), HasSubstr("1.5 is not a token id"));
  EXPECT_THAT(with("/model/vocab/x", "1"), HasSubstr("small.json"));
  EXPECT_THAT(config_error([] { tokenizer_from_json_text("{\"model\":", "cut.json"); }),
              HasSubstr("cut.json"));
  EXPECT_THAT(config_error([] { tokenizer_from_json("/nowhere/tokenizer.json"); }),
              HasSubstr("/nowhere/tokenizer.json"));
}

TEST(Tokenizer, gguf_kinds_are_refused_by_name) {
  GgufTokenizerMetadata metadata;
  metadata.source = "m.gguf";
  metadata.model = "llama";
  const auto error = [&] { return config_error([&] { tokenizer_from_gguf(metadata); }); };
  EXPECT_THAT(error(), AllOf(HasSubstr("m.gguf"), HasSubstr("'llama'"), HasSubstr("'gpt2'")));
  metadata.model = "gpt2";
  metadata.pre = "no-such-pre";
  EXPECT_THAT(error(), AllOf(HasSubstr("'no-such-pre'"), HasSubstr("smollm, gpt-2, qwen2")));
  metadata.pre = "gpt-2";
  metadata.tokens = {"a", "b"};
  EXPECT_THAT(error(), HasSubstr("2 tokens but 0 token types"));
  metadata.token_type = {1, 6};
  EXPECT_THAT(error(), HasSubstr("token 1 ('b') is 6"));
  metadata.token_type = {1, 1};
  metadata.merges = {"ab"};
  EXPECT_THAT(error(), HasSubstr("merges[0] is 'ab'"));
}

}  // namespace
}  // namespace testbed
