#include "runtime/text/pre_tokenizer.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <utility>

#include "kernels/base/check.hpp"
#include "kernels/base/errors.hpp"

namespace testbed {

const PreTokenizer gpt2_split{
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    PreTokenizer::Behavior::isolated,
    false};
const PreTokenizer single_digits{R"(\p{N})", PreTokenizer::Behavior::isolated, false};

namespace {

constexpr size_t jit_stack_bytes = size_t{64} << 20;  // reserved address space, not memory

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

struct FreePcre2 {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <typename T>
using Pcre2Ptr = std::unique_ptr<T, FreePcre2>;

}  // namespace

struct Regex::Impl {
  std::string pattern;
  Pcre2Ptr<pcre2_code> code;
  Pcre2Ptr<pcre2_match_data> match;
  Pcre2Ptr<pcre2_jit_stack> stack;
  Pcre2Ptr<pcre2_match_context> context;
};

Regex::Regex(const std::string& pattern) : impl_(std::make_unique<Impl>()) {
  const Pcre2Ptr<pcre2_compile_context> options(pcre2_compile_context_create(nullptr));
  CHECK(options != nullptr);
  pcre2_set_newline(options.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  impl_->pattern = pattern;
  impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                  pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                  &error,
                                  &offset,
                                  options.get()));
  if (impl_->code == nullptr) {
    throw ConfigError(fmt::format(
        "pre-tokenizer pattern '{}': {} (at byte {})", pattern, pcre2_message(error), offset));
  }
  impl_->match.reset(pcre2_match_data_create_from_pattern(impl_->code.get(), nullptr));
  impl_->context.reset(pcre2_match_context_create(nullptr));
  CHECK(impl_->match != nullptr && impl_->context != nullptr);
  // Long runs of blanks backtrack once per character: no fixed limit fits every prompt.
  pcre2_set_match_limit(impl_->context.get(), UINT32_MAX);
  // Without JIT (not built in, or no executable memory) pcre2_match interprets: the same matches.
  if (pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE) == 0) {
    impl_->stack.reset(pcre2_jit_stack_create(size_t{32} << 10, jit_stack_bytes, nullptr));
    CHECK(impl_->stack != nullptr);
    pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->stack.get());
  }
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::optional<Regex::Match> Regex::first(std::string_view text, size_t from) const {
  // The text is known to be well formed; checking all of it at every match would be quadratic.
  const int rc = pcre2_match(impl_->code.get(),
                             reinterpret_cast<PCRE2_SPTR>(text.data()),
                             text.size(),
                             from,
                             PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                             impl_->match.get(),
                             impl_->context.get());
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) {
    throw ConfigError(
        fmt::format("pre-tokenizer pattern '{}': {}", impl_->pattern, pcre2_message(rc)));
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(impl_->match.get());
  // A \K in a lookaround can report a start behind the search or past the end.
  if (range[0] < from || range[1] <= range[0]) {
    throw ConfigError(
        fmt::format("pre-tokenizer pattern '{}': \\K is not supported", impl_->pattern));
  }
  return Match{range[0], range[1]};
}

std::vector<Regex::Match> Regex::find_all(std::string_view text) const {
  std::vector<Match> matches;
  size_t at = 0;
  while (at < text.size()) {
    const std::optional<Match> match = first(text, at);
    if (!match) break;
    matches.push_back(*match);
    at = match->end;
  }
  return matches;
}

PreTokenizerSequence::PreTokenizerSequence(const std::vector<PreTokenizer>& steps) {
  for (const PreTokenizer& step : steps) {
    steps_.push_back({Regex(step.pattern), step.behavior, step.invert});
  }
}

std::vector<std::string_view> PreTokenizerSequence::split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const Step& step : steps_) {
    const bool isolated = step.behavior == PreTokenizer::Behavior::isolated;
    const bool keep_matches = isolated || step.invert;
    const bool keep_gaps = isolated || !step.invert;
    std::vector<std::string_view> next;
    for (const std::string_view piece : pieces) {
      size_t at = 0;
      for (const Regex::Match m : step.regex.find_all(piece)) {
        if (keep_gaps && m.begin > at) next.push_back(piece.substr(at, m.begin - at));
        if (keep_matches) next.push_back(piece.substr(m.begin, m.end - m.begin));
        at = m.end;
      }
      if (keep_gaps && at < piece.size()) next.push_back(piece.substr(at));
    }
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace testbed
