// An acceptance with one case of every kind, as its reports are given it: four ranks on two hosts,
// the link 0-2 too slow, rank 3's device too.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "runtime/accept/verdict.hpp"

namespace testbed {

inline Expectation expected_figure(FigureKey key, double expected) {
  return {.key = std::move(key),
          .expected = expected,
          .tolerance = 0.05,
          .source = "probe of 2026-11-29",
          .where = "two-hosts.toml:12"};
}

inline Figure link_figure(int low, int high, std::vector<double> samples, bool passed) {
  const FigureKey key{.figure = "link.one_way_gb_s",
                      .bytes = int64_t{8} << 20,
                      .scope = low / 2 == high / 2 ? "within-host" : "between-hosts"};
  return {.key = key,
          .unit = "GB/s",
          .samples = std::move(samples),
          .gate = expected_figure(key, 4.0),
          .passed = passed,
          .ranks = {low, high}};
}

inline CaseResult links_case() {
  CaseResult result{.stage = "links",
                    .name = "all pairs 8 MiB",
                    .status = CaseStatus::failed,
                    .reason = "link 0-2: 1.2 GB/s one way with 8 MiB, the others 4.1"};
  result.figures = {link_figure(0, 1, {4.0, 4.1, 4.2}, true),
                    link_figure(0, 2, {1.2, 1.1, 1.3}, false),
                    link_figure(1, 3, {4.1, 4.1, 4.0}, true)};
  result.blamed = {{Blame::Kind::link, {0, 2}, "node-a", "1.2 GB/s, the others 4.1"}};
  RankMatrix matrix{.title = "one way bandwidth", .unit = "GB/s", .values = {}};
  matrix.values.assign(4, std::vector<std::optional<double>>(4));
  const auto set = [&](size_t i, size_t j, double value) {
    matrix.values[i][j] = value;
    matrix.values[j][i] = value;
  };
  set(0, 1, 4.1);
  set(0, 2, 1.2);
  set(1, 3, 4.1);
  set(2, 3, std::numeric_limits<double>::quiet_NaN());
  result.matrices.push_back(std::move(matrix));
  result.notes = {"1 of 6 pairs was measured once more"};
  result.seconds = 1.5;
  result.attempts = 2;
  return result;
}

inline CaseResult device_case() {
  CaseResult result{.stage = "device",
                    .name = "weight read",
                    .status = CaseStatus::failed,
                    .reason = "device of rank 3 reads 31 GB/s, its cohort 62"};
  for (int rank = 0; rank < 4; ++rank) {
    result.figures.push_back({.key = {.figure = "device.read_gb_s"},
                              .unit = "GB/s",
                              .samples = {rank == 3 ? 31.0 : 62.0 + rank},  // one sample (D35)
                              .ranks = {rank}});
  }
  result.blamed = {{Blame::Kind::device, {3}, "node-b", "reads 31 GB/s, its cohort 62"}};
  result.seconds = 0.25;
  return result;
}

inline CaseResult corrupt_case() {
  CaseResult result{.stage = "collectives",
                    .name = "all_reduce 4 ranks 1 MiB",
                    .status = CaseStatus::failed,
                    .corrupt = true,
                    .reason = "all_reduce of 1 MiB: offset 4096 of rank 2 is 1.5, not 1"};
  const FigureKey key{.figure = "collective.us",
                      .op = "all_reduce",
                      .ranks = 4,
                      .bytes = int64_t{1} << 20,
                      .scope = "between-hosts",
                      .algorithm = "ring"};
  result.figures = {{.key = key,
                     .unit = "us",
                     .samples = {900.0, std::numeric_limits<double>::infinity(), 950.0},
                     .gate = expected_figure(key, 1000.0)}};
  result.blamed = {{Blame::Kind::rank, {2}, "node-b", "offset 4096 of all_reduce"}};
  result.seconds = 0.5;
  return result;
}

inline Acceptance sample_acceptance() {
  Acceptance acceptance;
  acceptance.verdict = Verdict::corruption;
  acceptance.reasons = {"collectives/all_reduce 4 ranks 1 MiB: offset 4096 of rank 2 is 1.5, not 1",
                        "links/all pairs 8 MiB: link 0-2 is too slow"};
  acceptance.finished = true;
  acceptance.profile.name = "two-hosts";
  acceptance.profile.device = "cpu";
  acceptance.profile.description = "two hosts at 10 Gbit/s";
  acceptance.profile.flaky_allowed = 1;
  acceptance.profile.source = "configs/acceptance/two-hosts.toml";
  acceptance.profile.expectations = {*link_figure(0, 2, {1.0}, true).gate};
  acceptance.device = "cpu";
  acceptance.world_size = 4;
  acceptance.hosts = {"node-a", "node-a", "node-b", "node-b"};
  acceptance.devices = {"Xeon & co", "Xeon & co", "Xeon \"2\"", "Xeon \"2\""};
  acceptance.labels = {"FAULT INJECTED: slow-link \x1b[31m0-2"};
  acceptance.cases = {{.stage = "preflight", .name = "versions", .reason = ""},
                      device_case(),
                      links_case(),
                      corrupt_case(),
                      {.stage = "collectives",
                       .name = "all_to_all 4 ranks 1 MiB",
                       .status = CaseStatus::flaky,
                       .reason = "1300 us, at most 1050 us; passed when repeated",
                       .attempts = 2},
                      {.stage = "model",
                       .name = "tp 4",
                       .status = CaseStatus::error,
                       .reason = "rank 1 did not arrive: \x1b]0;<&> \xff"},
                      {.stage = "soak",
                       .name = "60 s",
                       .status = CaseStatus::skipped,
                       .reason = "--soak was not given"}};
  acceptance.coverage = {.cases = {{"preflight", {1, 1}},
                                   {"device", {1, 1}},
                                   {"links", {1, 1}},
                                   {"collectives", {2, 2}},
                                   {"model", {1, 1}},
                                   {"soak", {0, 1}}},
                         .gated = 4,
                         .figures = 8,
                         .gates_not_met_by_a_figure = {"model.tpot_ms llama3-8b tp 4"}};
  acceptance.drift = {{.key = {.figure = "device.read_gb_s"},
                       .ranks = {3},
                       .before = 62.0,
                       .now = 31.0,
                       .change = -0.5,
                       .beyond_spread = true}};
  acceptance.fingerprint.hosts = {"node-a", "node-b"};
  acceptance.fingerprint.version = "0.1.0";
  acceptance.began = "2026-11-30T10:43:56Z";
  acceptance.seconds = 2.75;
  return acceptance;
}

}  // namespace testbed
