#include "runtime/accept/exposure_run.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "parallel/comm/inject.hpp"
#include "runtime/accept/decode_figures.hpp"
#include "runtime/accept/rank_values.hpp"
#include "runtime/commands/session.hpp"
#include "runtime/measure/statistics.hpp"

namespace testbed {
namespace {

class DelayBeforeAllReduces final : public CommHooks {
 public:
  DelayBeforeAllReduces(Device& device, bool may_spin) : device_(device), may_spin_(may_spin) {}
  void set_delay_us(int64_t delay_us) { delay_us_ = delay_us; }
  void before(const CommRecord& record, const GroupInfo& /*group*/) override {
    if (delay_us_ == 0 || record.op != CommOp::all_reduce) return;
    device_.synchronize();  // one that works behind the host's back is to be late, not the host
    take_time(delay_us_ * 1000, may_spin_);
  }

 private:
  Device& device_;
  bool may_spin_;
  int64_t delay_us_ = 0;
};

// A level more adds about one undelayed step to a step, so that the noise of a step is small beside
// what is added.
int64_t shortest_delay_us(double step_ms, double n_all_reduces, bool may_spin) {
  // Several times what a sleep is off by; where ranks take turns on cores, a turn of them.
  const int64_t least_us = may_spin ? 200 : 1000;
  return std::max<int64_t>(least_us, std::llround(1e3 * step_ms / n_all_reduces));
}

bool is_wide(const std::vector<DelayedStep>& steps, double width) {
  const std::optional<ExposedFraction> found = exposed_fraction(steps);
  return found && found->high - found->low > width;
}

}  // namespace

ExposureRun run_with_delays(const RankContext& context,
                            double n_all_reduces,
                            const ExposureOptions& options) {
  const MachineInfo& machine = context.machine;
  const bool may_spin = machine.ranks_on_host * machine.threads <= machine.cores_on_host;
  const auto hooks = std::make_shared<DelayBeforeAllReduces>(context.device, may_spin);
  context.groups.tp.add_hooks(hooks);
  Session session(context);
  session.generate_once(nullptr, 0, {});
  const double undelayed_ms = decode_step_ms(session.generate_once(nullptr, 0, {}).timing);
  const int64_t unit_us =
      value_of_root(context.control, shortest_delay_us(undelayed_ms, n_all_reduces, may_spin));

  ExposureRun run{.all_reduces_per_step = n_all_reduces, .delays_us = {}, .steps = {}};
  for (const int level : options.levels) run.delays_us.push_back(level * unit_us);
  const auto goes_on = [&](int round) {
    if (round < options.rounds) return true;
    if (round >= options.most_rounds) return false;
    return value_of_root(context.control, int{is_wide(run.steps, options.width)}) != 0;
  };
  for (int round = 0; goes_on(round); ++round) {
    for (size_t turn = 0; turn < run.delays_us.size(); ++turn) {
      // Each round begins with another level: what drifts is in none more than in others.
      const size_t level = (turn + static_cast<size_t>(round)) % run.delays_us.size();
      hooks->set_delay_us(run.delays_us[level]);
      const double step_ms = decode_step_ms(session.generate_once(nullptr, 0, {}).timing);
      run.steps.push_back(
          {.delay_ms = static_cast<double>(run.delays_us[level]) * 1e-3 * n_all_reduces,
           .step_ms = step_ms});
    }
  }
  hooks->set_delay_us(0);
  return run;
}

}  // namespace testbed
