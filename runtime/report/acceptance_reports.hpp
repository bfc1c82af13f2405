// An acceptance as people and CI read it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/accept/verdict.hpp"

namespace testbed {

std::string to_json(const Acceptance& acceptance);        // strict JSON, one line per level
std::string to_junit(const Acceptance& acceptance);       // one testsuite per stage
std::string to_table(const Acceptance& acceptance);       // the terminal's summary, with heat maps
std::string to_prometheus(const Acceptance& acceptance);  // a textfile of node_exporter
// A text that takes the place of a word in such a report, once that is made.
std::string inside_json(std::string_view text);
std::string inside_junit(std::string_view text);
std::string inside_table(std::string_view text);  // the terminal's; metrics have no texts
// --list: what would run, with its estimated time; --explain: one case.
std::string to_list(const std::vector<PlannedCase>& planned);
std::string to_explanation(const PlannedCase& planned, const AcceptanceProfile& profile);
// An earlier acceptance, of its figures as much as drift needs. Throws ConfigError.
Acceptance read_acceptance(const std::string& path);

}  // namespace testbed
