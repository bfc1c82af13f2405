#include "runtime/sweep/best.hpp"

#include <algorithm>
#include <tuple>

#include "kernels/base/check.hpp"

namespace testbed {

std::vector<Offer> pareto_front(std::vector<Offer> offers) {
  std::stable_sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) {
    return std::tuple(a.tpot_ms, -a.tokens_per_s_per_device) <
           std::tuple(b.tpot_ms, -b.tokens_per_s_per_device);
  });
  std::vector<Offer> front;
  for (const Offer& offer : offers)
    if (front.empty() || offer.tokens_per_s_per_device > front.back().tokens_per_s_per_device)
      front.push_back(offer);
  return front;
}

std::vector<BestSplit> find_best(const std::vector<SweepResult>& results, SweepConfig::Best best) {
  CHECK(best != SweepConfig::Best::none);
  std::vector<std::vector<Offer>> by_workload;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto rate = results[i].tokens_per_s_per_device(Phase::decode);
    if (!rate) continue;
    const auto mine =
        std::find_if(by_workload.begin(), by_workload.end(), [&](const std::vector<Offer>& offers) {
          return results[offers.front().result].point.same_workload(results[i].point);
        });
    (mine == by_workload.end() ? by_workload.emplace_back() : *mine)
        .push_back({i, results[i].record->phase(Phase::decode)->step_ms.median(), *rate});
  }
  std::vector<BestSplit> found;
  found.reserve(by_workload.size());
  for (const std::vector<Offer>& offers : by_workload) {
    // The ends of the front are the two optima.
    BestSplit split{.best = {}, .pareto = pareto_front(offers)};
    split.best = best == SweepConfig::Best::tpot ? split.pareto.front() : split.pareto.back();
    found.push_back(std::move(split));
  }
  return found;
}

}  // namespace testbed
