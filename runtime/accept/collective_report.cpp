#include "runtime/accept/collective_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/figures.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/measure/bus_factor.hpp"
#include "runtime/measure/statistics.hpp"

namespace testbed {
namespace {

class Report {
 public:
  Report(const AcceptContext& context,
         const GroupSet& set,
         const SweepOptions& options,
         const std::vector<CollectiveCurve>& curves,
         CaseResult& result)
      : context_(context), set_(set), options_(options), curves_(curves), result_(result) {}

  void write() {
    const size_t n_sizes = curves_.front().points.size();
    for (size_t i = 0; i < n_sizes; ++i) add_figures(i);
    judge(result_);
    add_notes(n_sizes);
    for (const CollectiveCurve& curve : curves_) blame_late(curve);
    for (const CollectiveCurve& curve : curves_) blame_wrong(curve);
  }

 private:
  double median_us(const CollectiveCurve& curve, size_t size) const {
    return median(curve.points[size].us);
  }

  // Of each size the group that took longest: none hides behind the others.
  void add_figures(size_t size) {
    const auto slowest =
        std::max_element(curves_.begin(), curves_.end(), [&](const auto& a, const auto& b) {
          return median_us(a, size) < median_us(b, size);
        });
    const CollectiveCurve::Point& point = slowest->points[size];
    const AcceptanceProfile& profile = context_.profile;
    const bool is_latency = point.bytes <= profile.latency_up_to_bytes;
    const std::optional<double> factor = bus_factor(comm_op_name(options_.op), set_.size);
    if (factor && point.bytes >= profile.bandwidth_from_bytes) {
      std::vector<double> gb_s;
      gb_s.reserve(point.us.size());
      for (const double us : point.us)
        gb_s.push_back(*factor * static_cast<double>(point.bytes) / us * 1e-3);
      add(judged(profile, key("collective.busbw_gb_s", point), std::move(gb_s)), *slowest, size);
      if (!is_latency) return;
    }
    const FigureKey time = key("collective.us", point);
    if (is_latency) {
      add(judged(profile, time, point.us), *slowest, size);
    } else {  // in between: shown, and not held against anything
      const std::string unit(figure_kind(time.figure)->unit);
      add({.key = time, .unit = unit, .samples = point.us, .gate = {}}, *slowest, size);
    }
  }

  // Which of several groups it is of matters where that one stands out, or fails.
  void add(Figure figure, const CollectiveCurve& slowest, size_t size) {
    if (curves_.size() > 1 && (stands_out(slowest, size) || !figure.passed))
      figure.ranks = slowest.ranks;
    result_.figures.push_back(std::move(figure));
  }

  FigureKey key(std::string_view figure, const CollectiveCurve::Point& point) const {
    return collective_key(figure, options_.op, set_.size, point.bytes, set_.scope, point.algorithm);
  }

  // Of three groups or more.
  bool stands_out(const CollectiveCurve& slowest, size_t size) const {
    std::vector<double> us;
    us.reserve(curves_.size());
    for (const CollectiveCurve& curve : curves_) us.push_back(median_us(curve, size));
    const auto at = static_cast<size_t>(&slowest - curves_.data());
    const std::vector<size_t> out = outliers(us, context_.profile.cohort_tolerance, false);
    return std::find(out.begin(), out.end(), at) != out.end();
  }

  void add_notes(size_t n_sizes) {
    std::set<std::string> ways;
    for (const CollectiveCurve& curve : curves_) {
      if (curve.ranks.size() == 1) {
        result_.notes.emplace_back("one rank: nothing is exchanged, and bus bandwidth is n/a");
        continue;
      }
      ways.insert(way_of(curve));
    }
    for (const std::string& way : ways) result_.notes.push_back(way);
    if (n_sizes < options_.sizes.size()) {
      result_.not_run.push_back(fmt::format(
          "payloads above {} bytes: a call of these took {:.1f} s (--max-bytes asks for less)",
          curves_.front().points.back().bytes,
          median_us(curves_.front(), n_sizes - 1) * 1e-6));
    }
  }

  // "over shm: one-shot to 65536 bytes, then two-shot".
  static std::string way_of(const CollectiveCurve& curve) {
    std::string text = fmt::format("over {}: ", curve.transport);
    for (size_t i = 0; i < curve.points.size(); ++i) {
      const std::string_view mine = algorithm_name(curve.points[i].algorithm);
      if (i == 0) {
        text += mine;
      } else if (curve.points[i - 1].algorithm != curve.points[i].algorithm) {
        text += fmt::format(" to {} bytes, then {}", curve.points[i - 1].bytes, mine);
      }
    }
    return text;
  }

  // A rank that comes so late that a short call takes twice as long for it is at fault itself, and
  // not its links.
  void blame_late(const CollectiveCurve& curve) {
    if (!curve.late) return;
    const Latecomer& late = *curve.late;
    const std::string what = fmt::format("comes {:.0f} us late to {} of {} calls of {}",
                                         late.late_us,
                                         late.n_late,
                                         late.n_calls,
                                         comm_op_name(options_.op));
    result_.notes.push_back(fmt::format("rank {} {}; times are without it", late.rank, what));
    if (late.late_us < median_us(curve, 0)) return;
    if (result_.status == CaseStatus::passed) {
      result_.status = CaseStatus::failed;
      result_.reason = fmt::format("rank {} {}", late.rank, what);
    }
    result_.blamed.push_back({.kind = Blame::Kind::rank,
                              .ranks = {late.rank},
                              .host = context_.hosts[static_cast<size_t>(late.rank)],
                              .what = what});
  }

  void blame_wrong(const CollectiveCurve& curve) {
    if (!curve.is_wrong()) return;
    const CollectiveValues values =
        sweep_values(context_.device.compute_dtype(), set_.size, options_);
    CollectiveBlame blame = blame_for(curve.wrong, values);
    result_.status = CaseStatus::failed;
    // Of several groups the first's; what is wrong matters more than what is slow.
    if (result_.corrupt) {
      result_.notes.push_back(blame.reason);
    } else {
      result_.reason = blame.reason;
    }
    result_.corrupt = true;
    for (Blame& each : blame.blamed) {
      each.host = context_.hosts[static_cast<size_t>(each.ranks.front())];
      result_.blamed.push_back(std::move(each));
    }
  }

  const AcceptContext& context_;
  const GroupSet& set_;
  const SweepOptions& options_;
  const std::vector<CollectiveCurve>& curves_;
  CaseResult& result_;
};

}  // namespace

void report_collective(const AcceptContext& context,
                       const GroupSet& set,
                       const SweepOptions& options,
                       const std::vector<CollectiveCurve>& curves,
                       CaseResult& result) {
  Report(context, set, options, curves, result).write();
}

}  // namespace testbed
