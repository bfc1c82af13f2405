// `testbed compare A.json B.json`.
#include "runtime/config/command_line_commands.hpp"
#include "runtime/config/command_line_options.hpp"
#include "runtime/config/option_values.hpp"

namespace testbed {
namespace {

void add_record(OptionParser& parser, const char* name, std::string& path) {
  parser.value(name, "FILE", "A record (run's --json)", [&](const auto& option, const auto& text) {
    path = require_text(option, text);
  });
}

}  // namespace

Command parse_compare(std::span<const std::string> args) {
  CompareConfig config;
  OptionParser parser("testbed compare",
                      "testbed compare A.json B.json [--json F]\n"
                      "Two records side by side; what differs by more than its spread is marked.");
  add_record(parser, "A.json", config.a);
  add_record(parser, "B.json", config.b);
  add_output_option(parser, "--json", "The comparison; - is standard output", config.output.json);
  add_quiet_option(parser, config.output.quiet);
  if (auto info = parser.parse(args)) return *info;
  parser.require("A.json", "the first record");
  parser.require("B.json", "the second record");
  return config;
}

}  // namespace testbed
