// Which command the arguments are for.
#include "runtime/config/command_line.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include "kernels/base/errors.hpp"
#include "runtime/config/command_line_commands.hpp"
#include "runtime/config/option_values.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {

Command parse_command_line(std::span<const std::string> args) {
  if (args.empty() || args.front().starts_with('-')) return parse_run(args);
  using Parse = Command (*)(std::span<const std::string>);
  constexpr std::array<std::pair<std::string_view, Parse>, 6> commands{{{"run", parse_run},
                                                                        {"sweep", parse_sweep},
                                                                        {"compare", parse_compare},
                                                                        {"plan", parse_plan},
                                                                        {"probe", parse_probe},
                                                                        {"accept", parse_accept}}};
  const std::string& command = args.front();
  for (const auto& [name, parse] : commands)
    if (command == name) return parse(args.subspan(1));
  if (command == "serve") not_built(command, "this command is");
  throw ConfigError(
      fmt::format("unknown command {}; commands: run, sweep, compare, plan, probe, serve, accept",
                  in_quotes(command)));
}

}  // namespace testbed
