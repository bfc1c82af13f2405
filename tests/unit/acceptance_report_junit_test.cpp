// An acceptance as JUnit XML: valid by tests/e2e/junit.xsd, counted right, harmless.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <pugixml.hpp>

#include "runtime/report/acceptance_reports.hpp"
#include "tests/unit/acceptance_report_support.hpp"

namespace testbed {
namespace {

using testing::HasSubstr;
using testing::Not;

// check_junit.py: the schema by xmllint, and every count.
void expect_valid(const std::string& text) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("junit." + std::to_string(::getpid()) + ".xml");
  std::ofstream(path) << text;
  const std::string command =
      "python3 -B " + std::string(TESTBED_SOURCE_DIR) + "/tests/e2e/check_junit.py " + path;
  EXPECT_EQ(std::system(command.c_str()), 0) << text;
  std::filesystem::remove(path);
}

class Report {
 public:
  explicit Report(const Acceptance& acceptance) : text_(to_junit(acceptance)) {
    EXPECT_TRUE(document_.load_string(text_.c_str())) << text_;
  }
  const std::string& text() const { return text_; }
  pugi::xml_node suite(const char* stage) const {
    return document_.child("testsuites")
        .find_child_by_attribute("testsuite", "name", (std::string("accept.") + stage).c_str());
  }
  pugi::xml_node test(const char* stage, const char* name) const {
    return suite(stage).find_child_by_attribute("testcase", "name", name);
  }

 private:
  std::string text_;
  pugi::xml_document document_;
};

TEST(AcceptanceJunit, is_valid_and_names_host_device_and_edge) {
  const Report report(sample_acceptance());
  expect_valid(report.text());
  const pugi::xml_node link =
      report.test("links", "links: rank 0 (node-a) - rank 2 (node-b), all pairs 8 MiB");
  EXPECT_STREQ(link.child("failure").attribute("type").value(), "gate");
  EXPECT_THAT(link.child("failure").attribute("message").value(), HasSubstr("1.2 GB/s"));
  EXPECT_THAT(link.child("failure").text().get(), HasSubstr("median 1.20, worst 1.10 GB/s, n 3"));
  const pugi::xml_node good =
      report.test("links", "links: rank 1 (node-a) - rank 3 (node-b), all pairs 8 MiB");
  EXPECT_TRUE(good);
  EXPECT_FALSE(good.child("failure"));
  const pugi::xml_node device =
      report.test("device", "device: rank 3 (node-b, Xeon \"2\"), weight read");
  EXPECT_THAT(device.child("failure").attribute("message").value(), HasSubstr("its cohort 62"));
  EXPECT_STREQ(report.suite("links").attribute("tests").value(), "4");
  EXPECT_STREQ(report.suite("links").attribute("failures").value(), "2");
  EXPECT_STREQ(report.suite("links").attribute("timestamp").value(), "2026-11-30T10:43:56");
  EXPECT_STREQ(report.suite("links").attribute("hostname").value(), "node-a");
}

TEST(AcceptanceJunit, tells_failure_error_and_skipped_apart) {
  const Report report(sample_acceptance());
  const pugi::xml_node wrong =
      report.test("collectives", "collectives: all_reduce 4 ranks 1 MiB").child("failure");
  EXPECT_STREQ(wrong.attribute("type").value(), "corruption");
  EXPECT_THAT(wrong.attribute("message").value(), HasSubstr("offset 4096 of rank 2"));
  EXPECT_THAT(wrong.text().get(), HasSubstr("blamed: rank 2 (node-b)"));
  const pugi::xml_node error = report.test("model", "model: tp 4").child("error");
  EXPECT_THAT(error.attribute("message").value(), HasSubstr("rank 1 did not arrive: \\x1b]0;<&>"));
  const pugi::xml_node skipped = report.test("soak", "soak: 60 s").child("skipped");
  EXPECT_STREQ(skipped.attribute("message").value(), "--soak was not given");
  EXPECT_STREQ(report.suite("model").attribute("errors").value(), "1");
  EXPECT_STREQ(report.suite("soak").attribute("skipped").value(), "1");
  EXPECT_FALSE(report.test("preflight", "preflight: versions").first_child());
}

// Cases without a figure of a place: who is blamed is in a testcase's name all the same, and the
// case's own name stays.
TEST(AcceptanceJunit, names_whom_it_blames) {
  Acceptance acceptance = sample_acceptance();
  acceptance.cases[0].status = CaseStatus::failed;
  acceptance.cases[0].blamed = {
      {Blame::Kind::host, {2, 3}, "node-b", "kernel is 5.10, the others' 6.1"}};
  acceptance.cases[5].blamed = {{Blame::Kind::link, {1, 3}, "node-a", "lost a message"},
                                {Blame::Kind::rank, {2}, "node-b", "does not answer"}};
  const Report report(acceptance);
  expect_valid(report.text());
  EXPECT_TRUE(report.test("preflight", "preflight: versions").child("failure"));
  const pugi::xml_node host =
      report.test("preflight", "preflight: host node-b, versions").child("failure");
  EXPECT_THAT(host.attribute("message").value(), HasSubstr("kernel is 5.10"));
  const pugi::xml_node rank = report.test(
      "collectives", "collectives: rank 2 (node-b, Xeon \"2\"), all_reduce 4 ranks 1 MiB");
  EXPECT_STREQ(rank.child("failure").attribute("type").value(), "corruption");
  EXPECT_THAT(rank.child("failure").attribute("message").value(), HasSubstr("offset 4096"));
  EXPECT_TRUE(report.test("model", "model: tp 4").child("error"));
  const pugi::xml_node link =
      report.test("model", "model: rank 1 (node-a) - rank 3 (node-b), tp 4").child("error");
  EXPECT_STREQ(link.attribute("type").value(), "infrastructure");
  EXPECT_TRUE(report.test("model", "model: rank 2 (node-b, Xeon \"2\"), tp 4").child("error"));
  EXPECT_STREQ(report.suite("model").attribute("errors").value(), "3");
}

// What a watchdog says takes the place of its word in a file that was rendered before.
TEST(AcceptanceJunit, takes_a_text_once_it_is_made) {
  Acceptance acceptance = sample_acceptance();
  acceptance.cases[5].reason = "WORD";
  std::string text = to_junit(acceptance);
  const std::string said = "\"all\" <pairs> & is not over:\nrank 2 (stopped) \x1b[31m]]>";
  for (size_t at = 0; (at = text.find("WORD", at)) != std::string::npos;) {
    text.replace(at, 4, inside_junit(said));
  }
  expect_valid(text);
  pugi::xml_document document;
  ASSERT_TRUE(document.load_string(text.c_str()));
  EXPECT_THAT(
      document.select_node("//error[../@name = 'model: tp 4']").node().attribute("message").value(),
      testing::StrEq("\"all\" <pairs> & is not over:\nrank 2 (stopped) \\x1b[31m]]>"));
}

// As many as the profile allows are passed cases with a property; one more, and each is a failure,
// as in the verdict.
TEST(AcceptanceJunit, flaky_cases_fail_only_if_they_reject) {
  const char* name = "collectives: all_to_all 4 ranks 1 MiB";
  Acceptance acceptance = sample_acceptance();
  {
    const Report report(acceptance);
    const pugi::xml_node flaky = report.test("collectives", name);
    EXPECT_FALSE(flaky.child("failure"));
    EXPECT_STREQ(flaky.child("properties").child("property").attribute("name").value(), "flaky");
    EXPECT_THAT(flaky.child("system-out").text().get(), HasSubstr("passed when repeated"));
  }
  acceptance.profile.flaky_allowed = 0;
  const Report report(acceptance);
  expect_valid(report.text());
  EXPECT_STREQ(report.test("collectives", name).child("failure").attribute("type").value(),
               "flaky");
  EXPECT_STREQ(report.suite("collectives").attribute("failures").value(), "3");
}

// A report of nothing must not look like one of all passed (D34).
TEST(AcceptanceJunit, of_nothing_tested_is_an_error) {
  Acceptance acceptance;
  acceptance.verdict = Verdict::incomplete;
  acceptance.reasons = {"nothing was tested"};
  acceptance.finished = true;
  const Report report(acceptance);
  expect_valid(report.text());
  EXPECT_STREQ(report.test("verdict", "verdict").child("error").attribute("message").value(),
               "nothing was tested");
  acceptance.verdict = Verdict::accept;
  EXPECT_FALSE(Report(acceptance).test("verdict", "verdict").child("error"));
  acceptance.finished = false;
  EXPECT_TRUE(Report(acceptance).test("verdict", "verdict").child("error"));
  acceptance.finished = true;
  acceptance.verdict = Verdict::reject;
  EXPECT_TRUE(Report(acceptance).test("verdict", "verdict").child("failure"));
}

// ESC, bytes that are no UTF-8 and U+FFFE cannot be in XML 1.0 in any form.
TEST(AcceptanceJunit, has_no_character_that_xml_forbids) {
  Acceptance acceptance = sample_acceptance();
  acceptance.hosts[0] = "node\x01\x1b\xef\xbf\xbe";
  acceptance.cases[2].notes = {"a \x07 bell\nand ]]> \xff"};
  acceptance.cases[2].reason.clear();
  const std::string text = to_junit(acceptance);
  expect_valid(text);
  for (const char c : text) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  EXPECT_THAT(text, Not(HasSubstr("&#27;")));
  EXPECT_THAT(text, Not(HasSubstr("\xef\xbf\xbe")));
  EXPECT_THAT(text, HasSubstr("a \\x07 bell"));
}

}  // namespace
}  // namespace testbed
