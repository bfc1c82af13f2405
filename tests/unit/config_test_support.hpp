// Shared by the config tests: fixture files, and the message of a ConfigError.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/base/errors.hpp"

namespace testbed::test {

inline std::filesystem::path fixture_path(const std::string& name) {
  return std::filesystem::path(TESTBED_SOURCE_DIR) / "tests/fixtures" / name;
}

// Of tests/fixtures/models.
inline const std::vector<std::string>& fixture_models() {
  static const std::vector<std::string> models{"deepseek_v2",
                                               "deepseek_v3",
                                               "gemma2",
                                               "gemma3",
                                               "gemma4_dense",
                                               "gemma4_moe",
                                               "gpt_oss",
                                               "llama3_gqa",
                                               "llama_5layers",
                                               "llama_mha_f32",
                                               "mistral_swa",
                                               "mixtral",
                                               "qwen2",
                                               "qwen3",
                                               "qwen3_moe",
                                               "smollm_tied"};
  return models;
}

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// what() of the ConfigError that `action` throws, which must be one line; "" if it throws nothing.
// Any other exception fails the test.
inline std::string config_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    const std::string what = error.what();
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    EXPECT_EQ(what.find('\x1b'), std::string::npos) << what;
    return what;
  }
  return "";
}

// `text` with its first occurrence of `from`, which must be there, replaced.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

}  // namespace testbed::test
