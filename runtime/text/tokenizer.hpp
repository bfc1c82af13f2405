// Byte-level BPE: text to token ids and back. TokenizerSpec is the plain data that both readers
// (tokenizer_readers.hpp) make; Tokenizer is what encodes and decodes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/text/bpe.hpp"
#include "runtime/text/pre_tokenizer.hpp"

namespace testbed {

enum class TokenKind : uint8_t {
  normal,   // found by merging; spelled byte-level
  added,    // found in the text as it stands ("user defined"); spelled literally
  control,  // the same, and it steers the model rather than being text ("<|im_start|>")
};

struct TokenizerSpec {
  std::string source;                                       // file or model, for errors
  std::vector<std::string> tokens;                          // by id; "" where an id has none
  std::vector<TokenKind> kinds;                             // as many as tokens
  std::vector<std::pair<std::string, std::string>> merges;  // byte-level spelling, by rank
  std::vector<PreTokenizer> steps;                          // in the order they apply
  bool add_prefix_space = false;  // of the ByteLevel step: a piece not starting with one gets it
  bool nfc = false;               // the model normalises text to NFC
  bool ignore_merges = false;     // a piece that is a token as a whole is that token
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  bool add_bos = false;           // encode() begins with bos_id
  std::optional<int32_t> unk_id;  // for bytes the vocabulary lacks; none: such text is refused
};

class Tokenizer {
 public:
  // Throws ConfigError, naming spec.source, if the parts contradict each other: a merge of tokens
  // that are not there, a token twice, an id out of range, a pattern that does not compile.
  explicit Tokenizer(TokenizerSpec spec);

  // Added and control tokens in the text become their ids (leftmost, then longest); the rest is
  // split, then merged. Bytes that are not UTF-8 are one byte token each, and no merge crosses
  // them. Throws ConfigError if a byte has no token and there is no unk_id, or, for an NFC model,
  // if the text may not be in NFC (a conservative test; normalising is the caller's). Not from
  // several threads at once.
  std::vector<int32_t> encode(std::string_view text) const;

  // Well-formed UTF-8: each maximal ill-formed part, and each id without a token (a model's table
  // may have more rows than the vocabulary), is U+FFFD. Control tokens are spelled out.
  std::string decode(std::span<const int32_t> ids) const;

  // The bytes of one token, perhaps part of a character; U+FFFD for an id without a token.
  std::string_view token_bytes(int32_t id) const;
  bool is_control(int32_t id) const;

  int64_t n_tokens() const { return static_cast<int64_t>(bytes_.size()); }
  std::optional<int32_t> bos_id() const { return spec_.bos_id; }
  std::optional<int32_t> eos_id() const { return spec_.eos_id; }
  bool add_bos() const { return spec_.add_bos; }

 private:
  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard's name
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  struct AddedToken {
    std::string text;
    int32_t id;
  };

  void index_tokens();
  void index_merges();
  void check_ids() const;
  int32_t find_spelling(const std::string& spelling, size_t rank) const;
  const AddedToken* added_at(std::string_view text) const;
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_utf8(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;
  int32_t byte_token(uint8_t byte) const;

  TokenizerSpec spec_;              // without tokens and merges, which the members below hold
  std::vector<std::string> bytes_;  // by id
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;  // normal tokens, by bytes
  std::array<int32_t, 256> byte_ids_{};                                  // -1: no such token
  std::array<std::vector<AddedToken>, 256> added_;  // by first byte, longest first
  BpeMerges merges_;
  PreTokenizerSequence pre_tokenizer_;
  std::optional<Regex> not_nfc_;  // if spec.nfc: matches where text may not be in NFC
};

// Text of a token stream as it arrives: push() returns whole characters only and keeps the bytes of
// an unfinished one. All results together are decode() of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string push(int32_t id);
  std::string finish();  // at the end: U+FFFD if a character was left unfinished

 private:
  const Tokenizer* tokenizer_;
  std::string held_;
};

}  // namespace testbed
