// One command's options over CLI11, which splits the arguments; every value is parsed here, so that
// numbers do not depend on the locale and messages are ours.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/config/commands.hpp"

namespace testbed {

class OptionParser {
 public:
  using Setter = std::function<void(const std::string& option, const std::string& value)>;

  // `name` as in "testbed sweep"; `description`: how it is called and what it does.
  OptionParser(const std::string& name, const std::string& description);

  // An option of one value, or without dashes in its name a positional argument.
  void value(const std::string& name,
             const char* placeholder,
             const std::string& help,
             Setter set,
             bool repeatable = false);
  void integer(const std::string& name,
               const char* placeholder,
               const std::string& help,
               int64_t lowest,
               int64_t highest,
               std::function<void(int64_t)> set);
  void flag(const std::string& name, const std::string& help, std::function<void()> set);
  void footer(const std::string& text) { app_.footer(text); }

  // Calls the setters. The text to print if --help or --version was among the arguments.
  std::optional<InfoText> parse(std::span<const std::string> args);

  bool given(const std::string& name) const { return given_.contains(name); }
  void require(const std::string& name, const char* what) const;
  void refuse_together(const std::string& a, const std::string& b) const;

 private:
  CLI::App app_;
  std::set<std::string> given_;
  bool version_ = false;
};

// Two outputs to one place are a mistake.
using NamedOutput = std::pair<const char*, const std::optional<std::string>*>;
void refuse_same_output(const std::vector<NamedOutput>& outputs);

// For what has no use on standard output.
void refuse_standard_output(const NamedOutput& output);

}  // namespace testbed
