#include "runtime/text/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/base/errors.hpp"
#include "runtime/text/byte_level.hpp"
#include "runtime/text/nfc_pattern.hpp"
#include "runtime/text/utf8.hpp"

namespace testbed {

Tokenizer::Tokenizer(TokenizerSpec spec) : spec_(std::move(spec)), pre_tokenizer_(spec_.steps) {
  if (spec_.nfc) not_nfc_.emplace(std::string(not_nfc_pattern));
  check_ids();
  index_tokens();
  index_merges();
}

void Tokenizer::check_ids() const {
  const size_t n = spec_.tokens.size();
  if (n == 0 || n > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw ConfigError(fmt::format("{}: a vocabulary of {} tokens", spec_.source, n));
  }
  if (spec_.kinds.size() != n) {
    throw ConfigError(
        fmt::format("{}: {} tokens but {} token types", spec_.source, n, spec_.kinds.size()));
  }
  const auto check = [&](std::string_view name, std::optional<int32_t> id) {
    if (id && (*id < 0 || static_cast<size_t>(*id) >= n)) {
      throw ConfigError(
          fmt::format("{}: {} id {} is outside the {} tokens", spec_.source, name, *id, n));
    }
  };
  check("bos", spec_.bos_id);
  check("eos", spec_.eos_id);
  check("unknown token", spec_.unk_id);
  if (spec_.add_bos && !spec_.bos_id) {
    throw ConfigError(
        fmt::format("{}: text begins with a bos token, but none is named", spec_.source));
  }
}

void Tokenizer::index_tokens() {
  byte_ids_.fill(-1);
  bytes_.reserve(spec_.tokens.size());
  for (size_t i = 0; i < spec_.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    std::string& token = spec_.tokens[i];
    const bool normal = spec_.kinds[i] == TokenKind::normal;
    const std::optional<std::string> bytes = normal ? byte_level_bytes(token) : std::nullopt;
    bytes_.push_back(bytes ? *bytes : token);
    const std::string& text = bytes_.back();
    if (text.empty()) continue;
    if (!normal) {
      added_[static_cast<uint8_t>(text[0])].push_back({text, id});
    } else if (bytes) {
      const auto [other, inserted] = ids_.emplace(text, id);
      if (!inserted) {
        throw ConfigError(fmt::format(
            "{}: token '{}' is both {} and {}", spec_.source, token, other->second, id));
      }
      if (text.size() == 1) byte_ids_[static_cast<uint8_t>(text[0])] = id;
    }
  }
  for (auto& tokens : added_) {
    std::stable_sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) {
      return a.text.size() > b.text.size();
    });
  }
}

int32_t Tokenizer::find_spelling(const std::string& spelling, size_t rank) const {
  const std::optional<std::string> bytes = byte_level_bytes(spelling);
  const auto it = bytes ? ids_.find(*bytes) : ids_.end();
  if (it == ids_.end()) {
    throw ConfigError(
        fmt::format("{}: merge {}: there is no token '{}'", spec_.source, rank, spelling));
  }
  return it->second;
}

void Tokenizer::index_merges() {
  for (size_t rank = 0; rank < spec_.merges.size(); ++rank) {
    const auto& [left, right] = spec_.merges[rank];
    merges_.add(find_spelling(left, rank),
                find_spelling(right, rank),
                static_cast<int32_t>(rank),
                find_spelling(left + right, rank));
  }
  spec_.tokens = {};
  spec_.merges = {};
}

const Tokenizer::AddedToken* Tokenizer::added_at(std::string_view text) const {
  for (const AddedToken& token : added_[static_cast<uint8_t>(text[0])]) {
    if (text.starts_with(token.text)) return &token;
  }
  return nullptr;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  if (spec_.add_bos) ids.push_back(*spec_.bos_id);
  size_t plain = 0;  // start of the text since the last added token
  size_t at = 0;
  while (at < text.size()) {
    const AddedToken* token = added_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    encode_plain(text.substr(plain, at - plain), ids);
    ids.push_back(token->id);
    at += token->text.size();
    plain = at;
  }
  encode_plain(text.substr(plain), ids);
  return ids;
}

void Tokenizer::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  while (!text.empty()) {
    const size_t valid = utf8_valid_prefix(text);
    if (valid > 0) {
      encode_utf8(text.substr(0, valid), ids);
      text.remove_prefix(valid);
    } else {
      ids.push_back(byte_token(static_cast<uint8_t>(text[0])));
      text.remove_prefix(1);
    }
  }
}

void Tokenizer::encode_utf8(std::string_view text, std::vector<int32_t>& ids) const {
  if (not_nfc_) {
    if (const auto match = not_nfc_->first(text)) {
      throw ConfigError(fmt::format(
          "{}: this model reads text in NFC, and the text may not be in NFC at '{}': normalise it "
          "or give token ids",
          spec_.source,
          text.substr(match->begin, match->end - match->begin)));
    }
  }
  std::string spaced;
  if (spec_.add_prefix_space && text[0] != ' ') {
    spaced = fmt::format(" {}", text);
    text = spaced;
  }
  for (const std::string_view piece : pre_tokenizer_.split(text)) encode_piece(piece, ids);
}

void Tokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  if (spec_.ignore_merges) {
    if (const auto it = ids_.find(piece); it != ids_.end()) {
      ids.push_back(it->second);
      return;
    }
  }
  std::vector<int32_t> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) symbols.push_back(byte_token(static_cast<uint8_t>(c)));
  merges_.merge(symbols, ids);
}

int32_t Tokenizer::byte_token(uint8_t byte) const {
  if (byte_ids_[byte] >= 0) return byte_ids_[byte];
  if (spec_.unk_id) return *spec_.unk_id;
  throw ConfigError(fmt::format(
      "{}: the vocabulary has no token for byte 0x{:02X} of the text", spec_.source, byte));
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= n_tokens() || bytes_[static_cast<size_t>(id)].empty())
    return utf8_replacement;
  return bytes_[static_cast<size_t>(id)];
}

bool Tokenizer::is_control(int32_t id) const {
  return id >= 0 && id < n_tokens() && spec_.kinds[static_cast<size_t>(id)] == TokenKind::control;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  StreamDecoder stream(*this);
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

std::string StreamDecoder::push(int32_t id) {
  held_ += tokenizer_->token_bytes(id);
  std::string text;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Unit unit = utf8_unit(rest);
    if (unit.kind == Utf8Unit::Kind::cut_short) break;
    text += unit.kind == Utf8Unit::Kind::character ? rest.substr(0, unit.size) : utf8_replacement;
    rest.remove_prefix(unit.size);
  }
  held_ = std::string(rest);
  return text;
}

std::string StreamDecoder::finish() {
  const bool unfinished = !held_.empty();
  held_.clear();
  return unfinished ? std::string(utf8_replacement) : std::string();
}

}  // namespace testbed
