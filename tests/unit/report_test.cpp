// JSON, CSV, trace, table and files of a record, as strict readers see them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <clocale>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <locale>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/base/errors.hpp"
#include "runtime/report/atomic_file.hpp"
#include "runtime/report/chrome_trace.hpp"
#include "runtime/report/csv.hpp"
#include "runtime/report/json.hpp"
#include "runtime/report/table.hpp"
#include "runtime/report/text.hpp"
#include "tests/unit/synthetic_run.hpp"

namespace testbed {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

RunRecord sample_record() { return analyse(late_rank_input()); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Code points, each a column here: the table has no wide characters.
size_t n_columns(const std::string& line) {
  return static_cast<size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// What LC_ALL=de_DE.UTF-8 does to numbers, whether or not that locale is installed.
class GermanNumbers : public std::numpunct<char> {
 protected:
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};
class InGermany {
 public:
  InGermany() : before_(std::locale::global(std::locale(std::locale(), new GermanNumbers))) {
    std::setlocale(LC_ALL, "de_DE.UTF-8");
  }
  InGermany(const InGermany&) = delete;
  InGermany& operator=(const InGermany&) = delete;
  ~InGermany() {
    std::setlocale(LC_ALL, "C");
    std::locale::global(before_);
  }

 private:
  std::locale before_;
};

TEST(Json, has_the_fields_that_scripts_read) {
  const json record = json::parse(to_json(sample_record()));
  for (const char* name : {"schema",
                           "device",
                           "simulated",
                           "labels",
                           "model",
                           "layers",
                           "world_size",
                           "parallel",
                           "requests",
                           "timing",
                           "phases",
                           "memory",
                           "checks",
                           "instrument_overhead",
                           "device_counters",
                           "energy",
                           "fingerprint"}) {
    EXPECT_TRUE(record.contains(name)) << name;
  }
  const json& decode = record.at("phases").at("decode");
  for (const char* name : {"steps",
                           "step_ms",
                           "bound_by",
                           "shares",
                           "mfu",
                           "mbu",
                           "flops",
                           "weight_bytes",
                           "kv_bytes",
                           "roofline",
                           "predicted",
                           "per_device",
                           "collectives",
                           "layers",
                           "pipeline",
                           "ring",
                           "experts"}) {
    EXPECT_TRUE(decode.contains(name)) << name;
  }
  EXPECT_TRUE(decode.at("weight_bytes").is_number_integer());
  EXPECT_EQ(decode.at("weight_bytes"), 2000000);
  EXPECT_EQ(decode.at("collectives").at(0).at("latest").at(0).at("rank"), 1);
  EXPECT_TRUE(decode.at("pipeline").is_null());
  EXPECT_EQ(record.at("requests").at(0).at("ids"), json({5, 6, 7, 8}));
  EXPECT_DOUBLE_EQ(record.at("timing").at("tpot_ms").get<double>(), 2.0);
}

// Of two devices; the second tells little.
RunRecord counted_record() {
  RunRecord record = sample_record();
  record.device_counters = {
      {.rank = 0,
       .device = "host0 GPU 0000:1B:00.0",
       .counters = {.seconds = 2.5,
                    .joules = 1500.0,
                    .nvlink_tx_bytes = 9007199254740993,
                    .throttle_reasons = std::vector<std::string>{"hw_thermal_slowdown"},
                    .thermal_throttled_s = 0.25,
                    .xids = std::vector<int64_t>{79},
                    .sm_clock_mhz_min = 1410,
                    .sm_clock_mhz_max = 1980,
                    .temperature_c_max = 88},
       .predicted_wire_bytes = 4096,
       .predicted_link_bytes = {{4096, 8192}},
       .why_no_link_bytes = std::nullopt,
       .transport = "nvlink"},
      {.rank = 1,
       .device = "host0 GPU 0000:5D:00.0",
       .counters = {.seconds = 2.5, .joules = 500.0, .why_no_dram = "not permitted"},
       .predicted_wire_bytes = 0,
       .predicted_link_bytes = std::nullopt,
       .why_no_link_bytes = "NVLS",
       .transport = "none"}};
  record.energy = {.joules = 2000.0, .joules_per_token = 125.0};
  return record;
}

TEST(Json, devices_say_what_they_counted_and_null_what_they_did_not) {
  const json record = json::parse(to_json(counted_record()));
  const json& first = record.at("device_counters").at(0);
  const json& second = record.at("device_counters").at(1);
  EXPECT_EQ(first.at("joules"), 1500.0);
  EXPECT_EQ(first.at("nvlink_tx_bytes"), 9007199254740993);
  EXPECT_EQ(first.at("predicted_wire_bytes"), 4096);
  EXPECT_EQ(first.at("predicted_link_bytes_min"), 4096);
  EXPECT_EQ(first.at("predicted_link_bytes_max"), 8192);
  EXPECT_TRUE(first.at("why_no_link_bytes").is_null());
  EXPECT_TRUE(second.at("predicted_link_bytes_max").is_null());
  EXPECT_EQ(second.at("why_no_link_bytes"), "NVLS");
  EXPECT_EQ(first.at("throttle_reasons"), json({"hw_thermal_slowdown"}));
  EXPECT_EQ(first.at("xids"), json(std::vector<int>{79}));
  EXPECT_EQ(first.at("temperature_c_max"), 88);
  EXPECT_TRUE(first.at("why_no_dram").is_null());
  EXPECT_EQ(second.at("why_no_dram"), "not permitted");
  for (const char* name : {"nvlink_tx_bytes",
                           "nvlink_rx_bytes",
                           "pcie_tx_bytes",
                           "pcie_rx_bytes",
                           "throttle_reasons",
                           "power_throttled_s",
                           "thermal_throttled_s",
                           "xids",
                           "ecc_corrected",
                           "ecc_uncorrected",
                           "sm_clock_mhz_min",
                           "sm_clock_mhz_max",
                           "temperature_c_max",
                           "dram_read_bytes",
                           "dram_write_bytes"}) {
    EXPECT_TRUE(second.at(name).is_null()) << name;
  }
  EXPECT_EQ(record.at("energy").at("joules_per_token"), 125.0);
  const json without = json::parse(to_json(sample_record()));
  EXPECT_EQ(without.at("device_counters"), json::array());
  EXPECT_TRUE(without.at("energy").is_null());
}

TEST(Table, counters_are_one_line_where_there_are_some) {
  RunRecord record = counted_record();
  EXPECT_THAT(to_table(record),
              HasSubstr("energy: 2000 J, 125 J per token; throttled: hw_thermal_slowdown; SM clock "
                        "1410 to 1980 MHz; at most\n  88 C\n"));
  record.energy.reset();
  record.device_counters.erase(record.device_counters.begin());
  EXPECT_THAT(to_table(record), HasSubstr("energy: n/a; throttled: n/a\n"));
  EXPECT_THAT(to_table(sample_record()), Not(HasSubstr("energy:")));
}

TEST(Json, D25_a_figure_that_is_not_finite_is_null) {
  RunRecord record = sample_record();
  record.phases[0].mfu = std::nan("");
  record.phases[0].step_ms.repeats = {std::numeric_limits<double>::infinity()};
  record.phases[0].roofline->ridge_flop_per_byte = -std::numeric_limits<double>::infinity();
  const std::string text = to_json(record);
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  EXPECT_THAT(text, Not(HasSubstr("inf")));
  const json decode = json::parse(text).at("phases").at("decode");
  EXPECT_TRUE(decode.at("mfu").is_null());
  EXPECT_TRUE(decode.at("step_ms").is_null());
  EXPECT_TRUE(decode.at("roofline").at("ridge_flop_per_byte").is_null());
  EXPECT_THAT(to_csv(record), Not(HasSubstr("nan")));
  EXPECT_THAT(to_table(record), HasSubstr("MFU n/a"));
}

TEST(Json, integers_are_exact_beyond_a_double) {
  RunRecord record = sample_record();
  record.phases[0].weight_bytes = (int64_t{1} << 53) + 1;
  EXPECT_EQ(
      json::parse(to_json(record)).at("phases").at("decode").at("weight_bytes").get<int64_t>(),
      (int64_t{1} << 53) + 1);
}

TEST(Reports, D25_no_report_depends_on_the_locale) {
  const RunRecord record = sample_record();
  const auto timelines = late_rank_input().timelines;
  const std::string before[] = {
      to_json(record), to_csv(record), to_table(record), chrome_trace(timelines, {.tp = 2}, false)};
  const InGermany germany;
  EXPECT_EQ(to_json(record), before[0]);
  EXPECT_EQ(to_csv(record), before[1]);
  EXPECT_EQ(to_table(record), before[2]);
  EXPECT_EQ(chrome_trace(timelines, {.tp = 2}, false), before[3]);
}

TEST(Reports, D25_escape_bytes_and_invalid_utf8_do_no_harm) {
  RunRecord record = sample_record();
  record.run.model = "evil\x1b[2Jmodel\xff\xc0\xaf,\"quoted\"\r\n";
  record.run.requests[0].text = "caf\xc3\xa9 \x1b \xed\xa0\x80 \x01";
  record.phases[0].per_device[0].host = "a,b\"c";
  const json parsed = json::parse(to_json(record));
  EXPECT_THAT(parsed.at("model").get<std::string>(), HasSubstr("evil\x1b[2Jmodel\xEF\xBF\xBD"));
  EXPECT_THAT(parsed.at("requests").at(0).at("text").get<std::string>(),
              HasSubstr("caf\xc3\xa9 \x1b "));
  EXPECT_THAT(to_json(record), HasSubstr("\\u001b"));
  const std::string table = to_table(record);
  EXPECT_EQ(table.find('\x1b'), std::string::npos);
  EXPECT_THAT(table, HasSubstr("evil\\x1b[2Jmodel"));
  EXPECT_THAT(to_csv(record), HasSubstr("\"a,b\"\"c\""));
  auto timelines = late_rank_input().timelines;
  timelines[0].host = "h\x1b\xff";
  EXPECT_TRUE(json::accept(chrome_trace(timelines, {.tp = 2}, false)));
}

TEST(Text, utf8_is_checked_strictly) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(valid_utf8("aé€😀"), "aé€😀");
  EXPECT_EQ(valid_utf8("\xc3"), bad);
  EXPECT_EQ(valid_utf8("\xe2\x82"), bad);
  EXPECT_EQ(valid_utf8("\xc0\xaf"), bad + bad);            // overlong
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), bad + bad + bad);  // surrogate
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80x").back(), 'x');  // beyond U+10FFFF
  EXPECT_EQ(valid_utf8("\xe2\x41"), bad + "A");
  EXPECT_EQ(printable("a\tb\x7f\xc2\x85"), "a\\x09b\\x7f\\x85");
}

TEST(Csv, is_rfc_4180_with_a_line_per_phase_and_device) {
  const std::string text = to_csv(sample_record());
  std::vector<std::string> lines = lines_of(text);
  ASSERT_EQ(lines.size(), 3U);
  for (const std::string& line : lines) {
    EXPECT_EQ(line.back(), '\r');
    EXPECT_EQ(std::count(line.begin(), line.end(), ','),
              std::count(lines[0].begin(), lines[0].end(), ','));
  }
  EXPECT_THAT(lines[0], HasSubstr("phase,bound_by,timed_step_ms"));
  EXPECT_THAT(lines[1], HasSubstr(",decode,overhead,8,"));
}

TEST(Trace, D25_no_two_events_of_a_track_overlap) {
  const auto timelines = late_rank_input().timelines;
  const json trace = json::parse(chrome_trace(timelines, {.tp = 2}, false));
  std::map<std::pair<int, int>, double> track_end;
  std::vector<std::string> names;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    names.push_back(event.at("name"));
    const std::pair<int, int> track{event.at("pid"), event.at("tid")};
    const double begin = event.at("ts");
    const double dur = event.at("dur");
    EXPECT_GE(dur, 0.0);
    EXPECT_GE(begin, 0.0);
    EXPECT_GE(begin, track_end[track] - 1e-6);
    track_end[track] = begin + dur;
  }
  EXPECT_EQ(track_end.size(), 6U);  // 2 ranks, 3 tracks
  EXPECT_THAT(names, Contains("all_reduce wait"));
  EXPECT_THAT(names, Contains("all_reduce"));
  EXPECT_THAT(names, Contains("linear"));
  EXPECT_THAT(names, Contains("decode 0"));
}

TEST(Trace, D25_overlapping_events_are_refused) {
  auto timelines = late_rank_input().timelines;
  timelines[0].ops.push_back(timelines[0].ops[0]);
  EXPECT_THROW(chrome_trace(timelines, {.tp = 2}, false), Error);
  timelines = late_rank_input().timelines;
  timelines[0].comms.push_back(timelines[0].comms[0]);
  EXPECT_THROW(chrome_trace(timelines, {.tp = 2}, false), Error);
}

TEST(Table, says_where_all_reduces_change_over) {
  RunRecord record = sample_record();
  EXPECT_THAT(to_table(record), Not(HasSubstr("all-reduces ")));
  record.run.fingerprint.environment["all-reduces"] =
      "by shared memory: one-shot to 8 KiB, two-shot above, one-shot+norm to 64 KiB (measured)";
  EXPECT_THAT(to_table(record),
              HasSubstr("\nall-reduces by shared memory: one-shot to 8 KiB, two-shot above, "
                        "one-shot+norm to 64 KiB (measured)\n"));
}

TEST(Table, shows_what_a_person_reads_first) {
  RunRecord record = sample_record();
  record.run.labels.push_back("inject: delay:rank=1,us=5000");
  const std::string table = to_table(record);
  for (const char* wanted : {"TTFT",
                             "TPOT",
                             "MFU",
                             "MBU",
                             "weights",
                             "1.00 MB",
                             "all-reduce per layer: payload 800 B, 800 B sent per device",
                             "late: rank 1 came last 1 times, 5000 us",
                             "! inject: delay:rank=1,us=5000",
                             "Decode is bound by"}) {
    EXPECT_THAT(table, HasSubstr(wanted));
  }
  for (const std::string& line : lines_of(table)) EXPECT_LE(n_columns(line), 100U) << line;
}

TEST(Table, many_equal_devices_are_one_line) {
  RunRecord record = sample_record();
  auto& devices = record.phases[0].per_device;
  const DevicePhaseRecord one = devices[0];
  devices.assign(64, one);
  for (int i = 0; i < 64; ++i) devices[static_cast<size_t>(i)].rank = i;
  EXPECT_THAT(to_table(record), HasSubstr("    0-63 "));
  EXPECT_LT(lines_of(to_table(record)).size(), 50U);
  devices[5].wait_ms += 5.0;
  EXPECT_THAT(to_table(record), HasSubstr("    0-4,6-63 "));
}

TEST(Table, human_bytes_has_three_digits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(999499), "999 kB");
  EXPECT_EQ(human_bytes(999500), "1.00 MB");
  EXPECT_EQ(human_bytes(12345678901), "12.3 GB");
}

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "report_test_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  static std::string read(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t n_files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  std::filesystem::path folder_;
};

TEST_F(FileTest, is_replaced_whole) {
  const auto path = folder_ / "record.json";
  write_file(path, "old");
  write_file(path, "new and longer");
  EXPECT_EQ(read(path), "new and longer");
  EXPECT_EQ(n_files(), 1U);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0600U, 0600U);
}

TEST_F(FileTest, a_place_that_cannot_be_written_is_the_users_mistake) {
  EXPECT_THROW(write_file(folder_ / "missing" / "record.json", "x"), ConfigError);
  std::filesystem::create_directory(folder_ / "dir");
  EXPECT_THROW(write_file(folder_ / "dir", "x"), ConfigError);
  EXPECT_EQ(n_files(), 1U);
}

TEST_F(FileTest, a_full_disk_is_an_error) {
  EXPECT_THROW(
      {
        try {
          write_file("/dev/full", "x");
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::runtime_failure);
          EXPECT_THAT(error.what(), HasSubstr("/dev/full: writing failed: No space left"));
          throw;
        }
      },
      Error);
}

}  // namespace
}  // namespace testbed
