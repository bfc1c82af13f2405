// An acceptance as a textfile of Prometheus' node_exporter: HELP, TYPE and samples, in base units
// (seconds, bytes, FLOP), without timestamps, which its collector refuses.
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <map>
#include <set>

#include "runtime/accept/gates.hpp"
#include "runtime/report/acceptance_parts.hpp"
#include "runtime/report/acceptance_reports.hpp"
#include "runtime/report/text.hpp"

namespace testbed {

namespace {

using namespace acceptance_report;

// A metric's samples must be together, so they are gathered by metric.
class Metrics {
 public:
  // Labels whose value is empty are left out: to Prometheus that is the same.
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Nothing for a value that is not finite: an absent sample is "not measured", 0 would be a
  // figure.
  void add(const std::string& name, const std::string& help, const Labels& labels, double value) {
    if (!std::isfinite(value)) return;
    std::string text;
    for (const auto& [label, content] : labels) {
      if (content.empty()) continue;
      text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", label, escaped(content));
    }
    // One series twice makes the collector refuse the file.
    const int n_before = n_seen_[name + text]++;
    if (n_before > 0) text += fmt::format("{}repeat=\"{}\"", text.empty() ? "" : ",", n_before + 1);
    auto& metric = metrics_[name];
    metric.help = help;
    metric.samples += fmt::format("{}{} {}\n", name, text.empty() ? "" : "{" + text + "}", value);
  }

  std::string text() const {
    std::string text;
    for (const auto& [name, metric] : metrics_) {
      text +=
          fmt::format("# HELP {0} {1}\n# TYPE {0} gauge\n{2}", name, metric.help, metric.samples);
    }
    return text;
  }

 private:
  struct Metric {
    std::string help;
    std::string samples;
  };

  static std::string escaped(const std::string& value) {
    std::string out;
    for (const char c : printable(value)) {
      if (c == '\\' || c == '"') out += '\\';
      out += c;
    }
    return out;
  }

  std::map<std::string, Metric> metrics_;
  std::map<std::string, int> n_seen_;
};

// From a figure's unit to Prometheus' base unit.
struct BaseUnit {
  const char* unit;
  double factor;
  const char* figure_suffix;  // of the figure's name, which says the unit too
  const char* metric_suffix;
};
constexpr BaseUnit base_units[] = {{"GB/s", 1e9, "_gb_s", "_bytes_per_second"},
                                   {"TFLOP/s", 1e12, "_tflop_s", "_flop_per_second"},
                                   {"us", 1e-6, "_us", "_seconds"},
                                   {"ms", 1e-3, "_ms", "_seconds"},
                                   {"s", 1.0, "_s", "_seconds"},
                                   {"1/s", 1.0, "_per_s", "_per_second"}};

struct MetricUnit {
  std::string name;
  double factor = 1.0;
};

// "link.one_way_gb_s" -> "testbed_acceptance_link_one_way_bytes_per_second"
MetricUnit metric_of(const Figure& figure) {
  std::string name = figure.key.figure;
  for (char& c : name) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!fits) c = '_';
  }
  MetricUnit metric{.name = "testbed_acceptance_" + name};
  for (const BaseUnit& base : base_units) {
    if (figure.unit != base.unit) continue;
    metric.factor = base.factor;
    if (metric.name.ends_with(base.figure_suffix)) {
      metric.name.resize(metric.name.size() - std::string_view(base.figure_suffix).size());
    }
    metric.name += base.metric_suffix;
  }
  return metric;
}

// Seconds since 1970 of "2026-11-30T10:43:56Z".
std::optional<double> unix_seconds(const std::string& utc) {
  std::tm time{};
  if (::strptime(utc.c_str(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr) return std::nullopt;
  return static_cast<double>(::timegm(&time));
}

std::string host_of(const Acceptance& acceptance, const std::vector<int>& ranks, size_t end) {
  if (end >= ranks.size() || ranks[end] < 0) return "";
  const auto rank = static_cast<size_t>(ranks[end]);
  return rank < acceptance.hosts.size() ? acceptance.hosts[rank] : "";
}
std::string rank_of(const std::vector<int>& ranks, size_t end) {
  return end < ranks.size() ? std::to_string(ranks[end]) : "";
}

Metrics::Labels labels_of(const Acceptance& acceptance,
                          const CaseResult& result,
                          const Figure& figure) {
  const FigureKey& key = figure.key;
  return {{"stage", result.stage},
          {"case", result.name},
          {"op", key.op.value_or("")},
          {"ranks", key.ranks ? std::to_string(*key.ranks) : ""},
          {"bytes", key.bytes ? std::to_string(*key.bytes) : ""},
          {"scope", key.scope.value_or("")},
          {"algorithm", key.algorithm.value_or("")},
          {"dtype", key.dtype.value_or("")},
          {"model", key.model.value_or("")},
          {"rank", rank_of(figure.ranks, 0)},
          {"host", host_of(acceptance, figure.ranks, 0)},
          {"peer", rank_of(figure.ranks, 1)},
          {"peer_host", host_of(acceptance, figure.ranks, 1)}};
}

void add_figure(Metrics& metrics,
                const Acceptance& acceptance,
                const CaseResult& result,
                const Figure& figure) {
  const MetricUnit metric = metric_of(figure);
  const FigureSummary summary = summary_of(figure);
  const Metrics::Labels labels = labels_of(acceptance, result, figure);
  const auto add = [&](const char* statistic, const std::optional<double>& value) {
    if (!value) return;
    Metrics::Labels with_statistic = labels;
    with_statistic.emplace_back("statistic", statistic);
    metrics.add(metric.name,
                fmt::format("Figure {} of an acceptance.", figure.key.figure),
                with_statistic,
                *value * metric.factor);
  };
  add("median", summary.median);
  add("worst", summary.worst);
  if (!figure.gate) return;
  add("gate", limit_of(*figure.gate));
  Metrics::Labels of_gate = labels;
  of_gate.emplace(of_gate.begin(), "figure", figure.key.figure);
  metrics.add("testbed_acceptance_gate_passed",
              "Whether a figure passed its gate.",
              of_gate,
              figure.passed ? 1.0 : 0.0);
}

void add_case(Metrics& metrics, const Acceptance& acceptance, const CaseResult& result) {
  const Metrics::Labels labels = {{"stage", result.stage}, {"case", result.name}};
  Metrics::Labels with_status = labels;
  with_status.emplace_back("status", case_status_name(result.status));
  metrics.add("testbed_acceptance_case_status", "How a case ended.", with_status, 1.0);
  metrics.add(
      "testbed_acceptance_case_duration_seconds", "Time that a case took.", labels, result.seconds);
  for (const Blame& blame : result.blamed) {
    metrics.add("testbed_acceptance_blamed",
                "What a case blames.",
                {{"stage", result.stage},
                 {"case", result.name},
                 {"kind", blame_kind_name(blame.kind)},
                 {"rank", rank_of(blame.ranks, 0)},
                 {"host", blame.host},
                 {"peer", rank_of(blame.ranks, 1)},
                 {"peer_host", host_of(acceptance, blame.ranks, 1)}},
                1.0);
  }
  for (const Figure& figure : result.figures) add_figure(metrics, acceptance, result, figure);
}

void add_verdict(Metrics& metrics, const Acceptance& acceptance) {
  for (const Verdict verdict : {Verdict::accept,
                                Verdict::reject,
                                Verdict::incomplete,
                                Verdict::infrastructure,
                                Verdict::corruption}) {
    metrics.add("testbed_acceptance_verdict",
                "1 for the verdict of the acceptance, 0 for the others.",
                {{"verdict", verdict_name(verdict)}},
                verdict == acceptance.verdict ? 1.0 : 0.0);
  }
  metrics.add("testbed_acceptance_finished",
              "0 while the acceptance runs, or if it never ended.",
              {},
              acceptance.finished ? 1.0 : 0.0);
  metrics.add("testbed_acceptance_duration_seconds",
              "Time that the acceptance took.",
              {},
              acceptance.seconds);
  if (const auto began = unix_seconds(acceptance.began)) {
    metrics.add("testbed_acceptance_start_time_seconds",
                "When the acceptance began, in seconds since 1970.",
                {},
                *began);
  }
  metrics.add("testbed_acceptance_info",
              "What was accepted.",
              {{"profile", acceptance.profile.name},
               {"device", acceptance.device},
               {"ranks", std::to_string(acceptance.world_size)},
               {"labels", fmt::format("{}", fmt::join(acceptance.labels, "; "))},
               {"version", acceptance.fingerprint.version}},
              1.0);
  for (const auto& [stage, counts] : acceptance.coverage.cases) {
    metrics.add("testbed_acceptance_cases_run", "Cases run.", {{"stage", stage}}, counts.first);
    metrics.add(
        "testbed_acceptance_cases_planned", "Cases planned.", {{"stage", stage}}, counts.second);
  }
}

}  // namespace

std::string to_prometheus(const Acceptance& acceptance) {
  Metrics metrics;
  add_verdict(metrics, acceptance);
  for (const CaseResult& result : acceptance.cases) add_case(metrics, acceptance, result);
  return metrics.text();
}

}  // namespace testbed
