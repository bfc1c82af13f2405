#include "runtime/config/command_line_parser.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/errors.hpp"
#include "runtime/config/option_values.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

OptionParser::OptionParser(const std::string& name, const std::string& description)
    : app_(description) {
  app_.name(name);
  app_.set_help_flag("-h,--help", "Print this and exit");
  flag("--version", "Print the version and exit", [this] { version_ = true; });
}

void OptionParser::value(const std::string& name,
                         const char* placeholder,
                         const std::string& help,
                         Setter set,
                         bool repeatable) {
  CLI::Option* option = app_.add_option(
      name,
      [this, name, set = std::move(set)](const CLI::results_t& values) {
        given_.insert(name);
        for (const std::string& text : values) {
          // CLI11 takes whatever follows as the value; only a prompt may look like an option.
          if (text.starts_with("--") && name != "--prompt")
            throw ConfigError(
                fmt::format("{}: a value is missing before {}", name, in_quotes(text)));
          set(name, text);
        }
        return true;
      },
      help);
  option->type_name(placeholder)->expected(1)->allow_extra_args(false);
  option->multi_option_policy(repeatable ? CLI::MultiOptionPolicy::TakeAll
                                         : CLI::MultiOptionPolicy::Throw);
}

void OptionParser::integer(const std::string& name,
                           const char* placeholder,
                           const std::string& help,
                           int64_t lowest,
                           int64_t highest,
                           std::function<void(int64_t)> set) {
  value(
      name,
      placeholder,
      help,
      [lowest, highest, set = std::move(set)](const std::string& option, const std::string& text) {
        set(parse_int(option, text, lowest, highest));
      });
}

void OptionParser::flag(const std::string& name,
                        const std::string& help,
                        std::function<void()> set) {
  app_.add_flag_callback(name, std::move(set), help)->disable_flag_override();
}

std::optional<InfoText> OptionParser::parse(std::span<const std::string> args) {
  // CLI11 takes the arguments from the back.
  std::vector<std::string> reversed(args.rbegin(), args.rend());
  try {
    app_.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return InfoText{app_.help()};
  } catch (const CLI::ExtrasError&) {
    throw ConfigError(fmt::format("unknown option or stray argument {}; see --help",
                                  in_quotes(app_.remaining().front())));
  } catch (const CLI::ArgumentMismatch& error) {
    throw ConfigError(fmt::format("{} (a flag takes no value, an option takes one, once)",
                                  one_line(error.what())));
  } catch (const CLI::Error& error) {
    throw ConfigError(one_line(error.what()));
  }
  if (version_) return InfoText{fmt::format("testbed {}\n", TESTBED_VERSION)};
  return std::nullopt;
}

void OptionParser::require(const std::string& name, const char* what) const {
  if (!given(name)) throw ConfigError(fmt::format("{} is missing: {}", name, what));
}

void OptionParser::refuse_together(const std::string& a, const std::string& b) const {
  if (given(a) && given(b)) throw ConfigError(fmt::format("{} and {} exclude each other", a, b));
}

void refuse_same_output(const std::vector<NamedOutput>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i)
    for (size_t j = i + 1; j < outputs.size(); ++j)
      if (*outputs[i].second && *outputs[i].second == *outputs[j].second)
        throw ConfigError(fmt::format("{} and {} both write to {}",
                                      outputs[i].first,
                                      outputs[j].first,
                                      **outputs[i].second == "-" ? std::string("standard output")
                                                                 : in_quotes(**outputs[i].second)));
}

void refuse_standard_output(const NamedOutput& output) {
  if (*output.second == "-")
    throw ConfigError(fmt::format("{}: needs a file, not standard output", output.first));
}

}  // namespace testbed
