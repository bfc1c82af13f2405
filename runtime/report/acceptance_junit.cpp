// An acceptance as JUnit XML, the form that Jenkins, GitLab and others read (tests/e2e/junit.xsd).
// A suite per stage, and one for the verdict: nothing tested is no passing report (D34). A case of
// several devices or links is followed by one testcase for each of them, and so is one that blames
// anybody.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <pugixml.hpp>
#include <sstream>

#include "runtime/report/acceptance_parts.hpp"
#include "runtime/report/acceptance_reports.hpp"
#include "runtime/report/text.hpp"

namespace testbed {

namespace {

using namespace acceptance_report;

// XML 1.0 has no way to write most control characters, nor U+FFFE and U+FFFF.
std::string xml_text(std::string_view text) {
  std::string out = printable(text);
  for (const char* none : {"\xEF\xBF\xBE", "\xEF\xBF\xBF"}) {
    for (size_t at = 0; (at = out.find(none, at)) != std::string::npos;) {
      out.replace(at, 3, "\xEF\xBF\xBD");
    }
  }
  return out;
}

std::string escaped_xml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

void set(pugi::xml_node& node, const char* name, const std::string& value) {
  node.append_attribute(name).set_value(value.c_str());
}
std::string seconds_text(double seconds) {
  return fmt::format("{:.3f}", std::isfinite(seconds) ? std::max(seconds, 0.0) : 0.0);
}

// One testcase before it is written.
struct TestCase {
  std::string name;
  CaseStatus status = CaseStatus::passed;
  std::string type;     // of failure or error
  std::string message;  // of every status but passed
  std::string details;  // lines, each fit for XML
  bool flaky = false;
  double seconds = 0.0;
};

struct Counts {
  int tests = 0;
  int failures = 0;
  int errors = 0;
  int skipped = 0;
  double seconds = 0.0;

  void add(const TestCase& test) {
    ++tests;
    failures += test.status == CaseStatus::failed ? 1 : 0;
    errors += test.status == CaseStatus::error ? 1 : 0;
    skipped += test.status == CaseStatus::skipped ? 1 : 0;
    seconds += test.seconds;
  }
};

std::string figure_line(const Acceptance& acceptance, const Figure& figure) {
  const FigureSummary summary = summary_of(figure);
  std::string line = fmt::format("{}, {}: median {}, worst {} {}, n {}",
                                 key_text(figure.key),
                                 place_text(acceptance, figure.ranks),
                                 figure_number(summary.median),
                                 figure_number(summary.worst),
                                 figure.unit,
                                 summary.n);
  if (figure.gate) {
    line += fmt::format("; gate {}: {} [{}]",
                        gate_text(figure),
                        figure.passed ? "passed" : "MISSED",
                        figure.gate->source);
  }
  return xml_text(line) + "\n";
}

class JUnit {
 public:
  explicit JUnit(const Acceptance& acceptance)
      : acceptance_(acceptance), flaky_fails_(too_flaky(acceptance)) {}

  std::string text() {
    pugi::xml_node declaration = document_.append_child(pugi::node_declaration);
    set(declaration, "version", "1.0");
    set(declaration, "encoding", "UTF-8");
    root_ = document_.append_child("testsuites");
    std::vector<std::pair<std::string, std::vector<TestCase>>> suites;
    for (const std::string& stage : stages_of(acceptance_))
      suites.emplace_back(stage, tests_of(stage));
    suites.emplace_back("verdict", std::vector<TestCase>{verdict_test()});
    Counts all;
    for (const auto& [name, tests] : suites) {
      for (const TestCase& test : tests) all.add(test);
    }
    set(root_, "name", "testbed accept");
    add_counts(root_, all);
    for (const auto& [name, tests] : suites) add_suite(name, tests);
    std::ostringstream out;
    document_.save(out, " ", pugi::format_default, pugi::encoding_utf8);
    return out.str();
  }

 private:
  // Where a figure is of, or who is blamed.
  struct Place {
    std::vector<int> ranks;
    std::string host = {};  // of a host as such
    bool operator==(const Place&) const = default;
  };

  static bool has_failed(const CaseResult& result) {
    return result.status == CaseStatus::failed || result.status == CaseStatus::error;
  }

  static Place place_of(const Blame& blame) {
    if (blame.kind == Blame::Kind::host && !blame.host.empty()) return {{}, blame.host};
    return {blame.ranks};
  }

  // Of its figures, and those that are blamed for its failure.
  static std::vector<Place> places_of(const CaseResult& result) {
    std::vector<Place> places;
    const auto add = [&](const Place& place) {
      const bool is_somewhere = !place.ranks.empty() || !place.host.empty();
      if (is_somewhere && std::find(places.begin(), places.end(), place) == places.end()) {
        places.push_back(place);
      }
    };
    for (const Figure& figure : result.figures) add({figure.ranks});
    for (const Blame& blame : result.blamed) {
      if (has_failed(result)) add(place_of(blame));
    }
    return places;
  }

  // A case whose figures are all of one place is that place's.
  static bool is_of_one_place(const CaseResult& result, const std::vector<Place>& places) {
    return places.size() == 1 && !result.figures.empty() &&
           std::all_of(result.figures.begin(), result.figures.end(), [&](const Figure& figure) {
             return Place{figure.ranks} == places[0];
           });
  }

  // The case itself, and if it is not of one place a testcase for each of its places.
  std::vector<TestCase> tests_of(const std::string& stage) const {
    std::vector<TestCase> tests;
    for (const CaseResult& result : cases_of(acceptance_, stage)) {
      const std::vector<Place> places = places_of(result);
      const bool is_one = is_of_one_place(result, places);
      tests.push_back(test_of(result, is_one ? &places[0] : nullptr));
      if (is_one) continue;
      for (const Place& place : places) tests.push_back(test_of_place(result, place));
    }
    return tests;
  }

  std::string name_of(const CaseResult& result, const Place& place) const {
    return xml_text(fmt::format(
        "{}: {}, {}",
        result.stage,
        place.host.empty() ? device_place_text(acceptance_, place.ranks) : "host " + place.host,
        result.name));
  }

  static std::string type_of(const CaseResult& result) {
    return result.corrupt                       ? "corruption"
           : result.status == CaseStatus::error ? "infrastructure"
                                                : "gate";
  }

  TestCase test_of(const CaseResult& result, const Place* place) const {
    TestCase test;
    test.name = place != nullptr ? name_of(result, *place)
                                 : xml_text(fmt::format("{}: {}", result.stage, result.name));
    test.status = result.status;
    test.message = result.reason;
    test.seconds = result.seconds;
    test.type = type_of(result);
    if (result.status == CaseStatus::flaky) {
      test.flaky = true;
      test.type = "flaky";
      test.status = flaky_fails_ ? CaseStatus::failed : CaseStatus::passed;
    }
    for (const Blame& blame : result.blamed) {
      test.details += xml_text("blamed: " + blame_text(acceptance_, blame)) + "\n";
    }
    for (const Figure& figure : result.figures) {
      if (place != nullptr || figure.ranks.empty()) {
        test.details += figure_line(acceptance_, figure);
      }
    }
    for (const std::string& part : result.not_run) {
      test.details += xml_text("not run: " + part) + "\n";
    }
    for (const std::string& note : result.notes) test.details += xml_text(note) + "\n";
    return test;
  }

  // Failed if one of its figures is, or it is blamed for the failure of its case.
  TestCase test_of_place(const CaseResult& result, const Place& place) const {
    TestCase test;
    test.name = name_of(result, place);
    test.type = "gate";
    for (const Figure& figure : result.figures) {
      if (Place{figure.ranks} != place) continue;
      test.details += figure_line(acceptance_, figure);
      if (figure.passed || !has_failed(result)) continue;
      test.status = CaseStatus::failed;
      if (test.message.empty()) test.message = missed_text(figure);
    }
    std::vector<std::string> blames;
    for (const Blame& blame : result.blamed) {
      if (!has_failed(result) || place_of(blame) != place) continue;
      test.status = result.status;
      test.type = type_of(result);
      blames.push_back(blame_text(acceptance_, blame));
    }
    if (!blames.empty()) test.message = fmt::format("{}", fmt::join(blames, "; "));
    return test;
  }

  static std::string missed_text(const Figure& figure) {
    return fmt::format("{}: {} {}, not {}",
                       key_text(figure.key),
                       figure_number(summary_of(figure).median),
                       figure.unit,
                       figure.gate ? limit_text(figure) : "good enough");
  }

  // A report of nothing tested must not look like one of all passed.
  TestCase verdict_test() const {
    TestCase test;
    test.name = "verdict";
    test.type = verdict_name(acceptance_.verdict);
    test.message = fmt::format("{}", fmt::join(acceptance_.reasons, "; "));
    for (const std::string& label : acceptance_.labels) test.details += xml_text(label) + "\n";
    switch (acceptance_.verdict) {
      case Verdict::accept:
        break;
      case Verdict::reject:
      case Verdict::corruption:
        test.status = CaseStatus::failed;
        break;
      default:
        test.status = CaseStatus::error;
    }
    if (!acceptance_.finished) {
      test.status = CaseStatus::error;
      test.message =
          "the acceptance did not finish" + (test.message.empty() ? "" : "; " + test.message);
    }
    return test;
  }

  void add_counts(pugi::xml_node& node, const Counts& counts) const {
    set(node, "tests", std::to_string(counts.tests));
    set(node, "failures", std::to_string(counts.failures));
    set(node, "errors", std::to_string(counts.errors));
    if (node != root_) set(node, "skipped", std::to_string(counts.skipped));
    set(node, "time", seconds_text(counts.seconds));
  }

  void add_suite(const std::string& name, const std::vector<TestCase>& tests) {
    pugi::xml_node suite = root_.append_child("testsuite");
    set(suite, "name", "accept." + xml_text(name));
    Counts counts;
    for (const TestCase& test : tests) counts.add(test);
    add_counts(suite, counts);
    // Ant's schema allows no zone, so the Z of UTC goes; the property has it.
    std::string began = xml_text(acceptance_.began);
    if (began.ends_with("Z")) began.pop_back();
    if (!began.empty()) set(suite, "timestamp", began);
    set(suite, "hostname", acceptance_.hosts.empty() ? "unknown" : xml_text(acceptance_.hosts[0]));
    add_properties(suite);
    for (const TestCase& test : tests) add_test(suite, name, test);
  }

  void add_properties(pugi::xml_node& suite) const {
    pugi::xml_node properties = suite.append_child("properties");
    const auto add = [&](const char* name, const std::string& value) {
      pugi::xml_node property = properties.append_child("property");
      set(property, "name", name);
      set(property, "value", xml_text(value));
    };
    add("began", acceptance_.began);
    add("profile", acceptance_.profile.name);
    add("device", acceptance_.device);
    add("ranks", std::to_string(acceptance_.world_size));
    add("hosts", fmt::format("{}", fmt::join(acceptance_.fingerprint.hosts, ", ")));
    add("version", acceptance_.fingerprint.version);
    for (const std::string& label : acceptance_.labels) add("label", label);
  }

  static void add_test(pugi::xml_node& suite, const std::string& stage, const TestCase& test) {
    pugi::xml_node node = suite.append_child("testcase");
    set(node, "name", test.name);
    set(node, "classname", "accept." + xml_text(stage));
    set(node, "time", seconds_text(test.seconds));
    if (test.flaky) {
      pugi::xml_node property = node.append_child("properties").append_child("property");
      set(property, "name", "flaky");
      set(property, "value", "true");
    }
    // Readers show the message; one that is empty would hide what happened.
    const std::string message =
        test.message.empty() ? case_status_name(test.status) : xml_text(test.message);
    if (test.status != CaseStatus::passed) {
      const bool skipped = test.status == CaseStatus::skipped;
      const bool error = test.status == CaseStatus::error;
      pugi::xml_node outcome = node.append_child(skipped ? "skipped" : error ? "error" : "failure");
      if (!skipped) set(outcome, "type", test.type);
      set(outcome, "message", message);
      if (!skipped) outcome.text().set(test.details.c_str());
      if (!skipped) return;
    }
    const std::string output = (test.flaky ? "flaky: " + message + "\n" : "") + test.details;
    if (!output.empty()) node.append_child("system-out").text().set(output.c_str());
  }

  const Acceptance& acceptance_;
  bool flaky_fails_;
  pugi::xml_document document_;
  pugi::xml_node root_;
};

}  // namespace

std::string to_junit(const Acceptance& acceptance) { return JUnit(acceptance).text(); }

std::string inside_junit(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    escaped += (escaped.empty() ? "" : "&#10;") + escaped_xml(xml_text(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return escaped;
}

}  // namespace testbed
