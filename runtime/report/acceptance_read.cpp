// An earlier acceptance, read back for what drift needs: who was measured, and the figures.
#include <fmt/format.h>

#include <limits>

#include "kernels/base/errors.hpp"
#include "runtime/config/json_input.hpp"
#include "runtime/config/text_input.hpp"
#include "runtime/report/acceptance_reports.hpp"

namespace testbed {

namespace {

constexpr int64_t any = std::numeric_limits<int64_t>::max();
constexpr int most_ranks = std::numeric_limits<int>::max();

FigureKey read_key(const JsonObject& from) {
  FigureKey key;
  key.figure = from.get_string("figure");
  key.op = from.find_string("op");
  if (const auto ranks = from.find_int("ranks", 1, most_ranks))
    key.ranks = static_cast<int>(*ranks);
  key.bytes = from.find_int("bytes", 0, any);
  key.scope = from.find_string("scope");
  key.algorithm = from.find_string("algorithm");
  key.dtype = from.find_string("dtype");
  key.model = from.find_string("model");
  return key;
}

Figure read_figure(const JsonObject& from) {
  Figure figure;
  figure.key = read_key(from.get_object("key"));
  figure.unit = from.get_string("unit");
  figure.alone = from.get_bool("alone");
  // A sample that was not finite is null, and says nothing about drift.
  for (const nlohmann::json& sample : from.get_list("samples")) {
    if (sample.is_null()) continue;
    if (!sample.is_number()) from.fail("samples", "is not a list of numbers");
    figure.samples.push_back(sample.get<double>());
  }
  for (const nlohmann::json& rank : from.get_list("ranks")) {
    figure.ranks.push_back(
        static_cast<int>(json_int(rank, from.where() + ": ranks", 0, most_ranks)));
  }
  return figure;
}

CaseStatus read_status(const JsonObject& from) {
  const std::string name = from.get_string("status");
  for (const CaseStatus status : {CaseStatus::passed,
                                  CaseStatus::failed,
                                  CaseStatus::flaky,
                                  CaseStatus::error,
                                  CaseStatus::skipped}) {
    if (name == case_status_name(status)) return status;
  }
  from.fail("status", in_quotes(name) + " is none");
}

Verdict read_verdict(const JsonObject& from) {
  const std::string name = from.get_string("verdict");
  for (const Verdict verdict : {Verdict::accept,
                                Verdict::reject,
                                Verdict::incomplete,
                                Verdict::infrastructure,
                                Verdict::corruption}) {
    if (name == verdict_name(verdict)) return verdict;
  }
  from.fail("verdict", in_quotes(name) + " is none");
}

CaseResult read_case(const JsonObject& from) {
  CaseResult result;
  result.stage = from.get_string("stage");
  result.name = from.get_string("name");
  result.status = read_status(from);
  const std::string where =
      fmt::format("{}: {}: figures", from.where(), in_quotes(result.stage + "/" + result.name));
  for (const nlohmann::json& figure : from.get_list("figures")) {
    result.figures.push_back(read_figure(JsonObject(figure, where)));
  }
  return result;
}

}  // namespace

Acceptance read_acceptance(const std::string& path) {
  const nlohmann::json document = parse_json(read_text_file(path), path);
  const JsonObject root(document, path);
  const std::string schema = root.find_string("schema").value_or("");
  if (schema != Acceptance::schema) {
    root.fail("schema",
              fmt::format(
                  "{} is not {}: no acceptance", in_quotes(schema), in_quotes(Acceptance::schema)));
  }
  Acceptance acceptance;
  acceptance.verdict = read_verdict(root);
  acceptance.finished = root.get_bool("finished");
  acceptance.device = root.get_string("device");
  acceptance.world_size = static_cast<int>(root.get_int("world_size", 1, most_ranks));
  acceptance.hosts = root.get_strings("hosts");
  acceptance.devices = root.get_strings("devices");
  acceptance.labels = root.get_strings("labels");
  acceptance.began = root.get_string("began");
  acceptance.profile.name = root.get_object("profile").get_string("name");
  for (const nlohmann::json& result : root.get_list("cases")) {
    acceptance.cases.push_back(read_case(JsonObject(result, path + ": cases")));
  }
  return acceptance;
}

}  // namespace testbed
