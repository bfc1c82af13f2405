#include "runtime/accept/fact_rules.hpp"

#include <charconv>

namespace testbed {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

FactRule rule_of(std::string_view fact) {
  using Holds = FactRule::Holds;
  if (fact.starts_with("env.")) return {FactGroup::environment, Holds::equal};
  if (fact.starts_with("rank.") || fact == "ranks_on_host") {
    return {FactGroup::placement, Holds::alike_by_seat};
  }
  if (contains(fact, "nics")) return {FactGroup::placement, Holds::equal_by_seat};
  if (fact == "device.pci" || contains(fact, "uuid")) return {FactGroup::placement, Holds::unique};
  if (contains(fact, "available") || contains(fact, "free")) {
    return {FactGroup::memory, Holds::shown};
  }
  if (contains(fact, "memory_gb")) return {FactGroup::memory, Holds::like_others};
  if (contains(fact, "max_clock") || fact == "governor") return {FactGroup::clocks, Holds::equal};
  if (contains(fact, "clock")) return {FactGroup::clocks, Holds::like_others};
  if (contains(fact, "throttle")) return {FactGroup::clocks, Holds::no_slowdown};
  if (contains(fact, "ecc_uncorrected")) return {FactGroup::devices, Holds::zero};
  for (const char* of_device : {"device", "processor", "microcode", "cores"}) {
    if (fact.starts_with(of_device)) return {FactGroup::devices, Holds::equal};
  }
  return {FactGroup::versions, Holds::equal};
}

std::optional<int> cores_in(std::string_view binding) {
  int n_cores = 0;
  const char* at = binding.data();
  const char* const end = at + binding.size();
  const auto read = [&](int& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    at = next;
    return error == std::errc();
  };
  while (true) {
    int first = 0;
    if (!read(first)) return std::nullopt;
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!read(last)) return std::nullopt;
    }
    if (last < first) return std::nullopt;
    n_cores += last - first + 1;
    if (at == end || *at != ',') return n_cores;
    ++at;
  }
}

}  // namespace testbed
