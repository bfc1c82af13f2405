// What preflight does with a fact of a rank, by its name.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace testbed {

// A case of preflight.
enum class FactGroup : uint8_t { versions, environment, devices, clocks, memory, placement };
inline constexpr std::string_view fact_group_names[] = {
    "versions", "environment", "devices", "clocks", "memory", "placement"};

struct FactRule {
  enum class Holds : uint8_t {
    equal,          // on all ranks
    like_others,    // a number: not more than a tenth below the hosts' median
    equal_by_seat,  // on the ranks that are the n-th of their hosts
    alike_by_seat,  // the same, but else a note: how a job is laid out may differ
    unique,         // among a host's ranks (D18)
    zero,           // where it is known
    no_slowdown,    // names none of a GPU's slowdowns: by heat or a power brake
    shown           // only what is required of it
  };
  FactGroup group = FactGroup::versions;
  Holds holds = Holds::equal;
};
FactRule rule_of(std::string_view fact);

// Cores in a binding as it is reported: "0-3,8 (unbound)" are 5; nullopt: it is not such a text.
std::optional<int> cores_in(std::string_view binding);

}  // namespace testbed
