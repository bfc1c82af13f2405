// Splits text into the pieces that BPE may not merge across: a sequence of regular expressions,
// each applied to every piece that the one before it left. Regular expressions are PCRE2 (UTF, UCP,
// multi-line as Hugging Face's Oniguruma is); its Unicode tables are those of the installed PCRE2,
// and its \s also holds U+180E, which Oniguruma's does not.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace testbed {

struct PreTokenizer {
  enum class Behavior : uint8_t {
    isolated,  // every match is a piece, and so is every stretch between matches
    removed,   // matches are dropped, or, inverted, what lies between them
  };
  std::string pattern;
  Behavior behavior = Behavior::isolated;
  bool invert = false;
};

// The splits that GPT-2's byte-level pre-tokenizer makes, and every digit by itself.
extern const PreTokenizer gpt2_split;
extern const PreTokenizer single_digits;

class Regex {
 public:
  explicit Regex(const std::string& pattern);  // throws ConfigError with the pattern and the place
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Non-empty matches in well-formed UTF-8, left to right, as [begin, end) byte offsets.
  struct Match {
    size_t begin;
    size_t end;
  };
  std::vector<Match> find_all(std::string_view text) const;
  std::optional<Match> first(std::string_view text, size_t from = 0) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Matching from several threads needs a PreTokenizerSequence for each.
class PreTokenizerSequence {
 public:
  explicit PreTokenizerSequence(const std::vector<PreTokenizer>& steps);
  // Pieces of well-formed UTF-8; they point into text.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct Step {
    Regex regex;
    PreTokenizer::Behavior behavior;
    bool invert;
  };
  std::vector<Step> steps_;
};

}  // namespace testbed
