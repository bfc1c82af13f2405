// Values of --inject.
#include <algorithm>
#include <set>

#include "runtime/config/option_values.hpp"

namespace testbed {
namespace {

struct Form {
  Injection::Kind kind;
  std::string_view text;
  std::vector<std::string_view> needed;
  std::vector<std::string_view> optional;
};

const std::vector<Form>& forms() {
  using Kind = Injection::Kind;
  static const std::vector<Form> all{
      {Kind::delay, "delay:rank=R|all,us=N[,every=N]", {"rank", "us"}, {"every"}},
      {Kind::flip, "flip:rank=R[,at=N][,bit=B]", {"rank"}, {"at", "bit"}},
      {Kind::slow_link, "slow-link:rank=A,peer=B,gb_s=X", {"rank", "peer", "gb_s"}, {}},
      {Kind::drop_link, "drop-link:rank=A,peer=B", {"rank", "peer"}, {}},
      {Kind::slow_device, "slow-device:rank=R,factor=F", {"rank", "factor"}, {}},
      {Kind::kill, "kill:rank=R[,at=N]", {"rank"}, {"at"}},
      {Kind::stop, "stop:rank=R[,at=N]", {"rank"}, {"at"}}};
  return all;
}

bool contains(const std::vector<std::string_view>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void set_field(Injection& injection,
               std::string_view name,
               std::string_view value,
               const std::string& what) {
  constexpr int64_t max_us = 3'600'000'000;
  constexpr int64_t max_bit = 31;
  const std::string text(value);
  if (name == "rank") {
    const bool all = injection.kind == Injection::Kind::delay && value == "all";
    injection.rank = all ? -1 : static_cast<int>(parse_int(what, value, 0, max_ranks));
  } else if (name == "peer") {
    injection.peer = static_cast<int>(parse_int(what, value, 0, max_ranks));
  } else if (name == "us") {
    injection.delay_us = parse_int(what, value, 1, max_us);
  } else if (name == "every") {
    injection.every = parse_int(what, value, 1, max_tokens);
  } else if (name == "at") {
    injection.at = parse_int(what, value, 1, INT64_MAX);
  } else if (name == "bit") {
    injection.bit = static_cast<int>(parse_int(what, value, 0, max_bit));
  } else if (name == "gb_s") {
    injection.gb_s = parse_positive(what, text);
  } else {
    injection.factor = parse_double(what, text);
    if (injection.factor < 1.0) throw ConfigError(fmt::format("{}: {} is below 1", what, text));
  }
}

}  // namespace

Injection parse_injection(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string_view name = std::string_view(text).substr(0, colon);
  const auto form = std::find_if(forms().begin(), forms().end(), [&](const Form& f) {
    return injection_name(f.kind) == name;
  });
  const auto fail = [&] {
    throw ConfigError(fmt::format("--inject: {} is not {}",
                                  in_quotes(text),
                                  form == forms().end() ? injection_forms : form->text));
  };
  if (form == forms().end() || colon == std::string::npos) fail();
  Injection injection;
  injection.kind = form->kind;
  std::set<std::string_view> seen;
  for (const std::string_view field : split(std::string_view(text).substr(colon + 1), ',')) {
    const size_t equals = field.find('=');
    if (equals == std::string_view::npos) fail();
    const std::string_view field_name = field.substr(0, equals);
    const std::string what = fmt::format("--inject {}, {}", name, in_quotes(field_name));
    if (!contains(form->needed, field_name) && !contains(form->optional, field_name)) fail();
    if (!seen.insert(field_name).second) throw ConfigError(fmt::format("{} appears twice", what));
    set_field(injection, field_name, field.substr(equals + 1), what);
  }
  for (const std::string_view needed : form->needed) {
    if (!seen.contains(needed)) fail();
  }
  if (injection.peer >= 0 && injection.rank == injection.peer) {
    throw ConfigError(fmt::format("--inject: {} has one rank at both ends", in_quotes(text)));
  }
  return injection;
}

}  // namespace testbed
