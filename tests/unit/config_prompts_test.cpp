// JSONL prompts.
#include "runtime/config/prompts.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using test::config_error;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Prompt> parse(const std::string& text) { return parse_prompts(text, "p.jsonl"); }
std::string error_of(const std::string& text) {
  return config_error([&] { parse(text); });
}

TEST(Prompts, both_kinds_of_line) {
  const auto prompts = parse(
      "{\"prompt\": \"a\\u00e9\\n\"}\r\n\n"
      "{\"prompt_ids\": [1, 2147483647], \"gen_tokens\": 7}\n"
      "{\"gen_tokens\": 1, \"prompt\": \"b\"}");
  ASSERT_EQ(prompts.size(), 3U);
  EXPECT_EQ(prompts[0].text, "a\u00e9\n");
  EXPECT_FALSE(prompts[0].gen_tokens);
  EXPECT_FALSE(prompts[1].text);
  EXPECT_THAT(prompts[1].ids, ElementsAre(1, 2147483647));
  EXPECT_EQ(prompts[1].gen_tokens, 7);
  EXPECT_EQ(prompts[2].gen_tokens, 1);
}

TEST(Prompts, D20_empty_prompt_is_refused) {
  EXPECT_THAT(error_of("{\"prompt\": \"a\"}\n{\"prompt\": \"\"}"), HasSubstr("p.jsonl:2"));
  EXPECT_THAT(error_of("{\"prompt_ids\": []}"), HasSubstr("p.jsonl:1"));
  EXPECT_THAT(error_of(""), HasSubstr("no prompts"));
  EXPECT_THAT(error_of("\n \n"), HasSubstr("no prompts"));
}

TEST(Prompts, malformed_lines_are_refused_with_file_and_line) {
  for (const char* line : {"{",
                           "[]",
                           "\"text\"",
                           "{}",
                           "null",
                           "{\"prompt\": 1}",
                           "{\"prompt\": null}",
                           "{\"prompts\": \"a\"}",
                           "{\"prompt\": \"a\", \"prompt\": \"b\"}",
                           "{\"prompt\": \"a\", \"prompt_ids\": [1]}",
                           "{\"prompt\": \"a\"} {\"prompt\": \"b\"}",
                           "{\"prompt\": \"\xff\"}",
                           "{\"prompt_ids\": 1}",
                           "{\"prompt_ids\": [-1]}",
                           "{\"prompt_ids\": [1.0]}",
                           "{\"prompt_ids\": [2147483648]}",
                           "{\"prompt_ids\": [\"1\"]}",
                           "{\"prompt\": \"a\", \"gen_tokens\": 0}",
                           "{\"prompt\": \"a\", \"gen_tokens\": 1.5}",
                           "{\"prompt\": \"a\", \"temperature\": 1}"})
    EXPECT_THAT(error_of("{\"prompt\": \"a\"}\n" + std::string(line)), HasSubstr("p.jsonl:2"))
        << line;
}

TEST(Prompts, missing_file_is_named) {
  EXPECT_THAT(config_error([] { read_prompts("/nonexistent/p.jsonl"); }),
              HasSubstr("/nonexistent/p.jsonl: no such file"));
}

}  // namespace
}  // namespace testbed
