// Preflight: what every host is and has, held against the other hosts and the profile before
// anything is measured.
#include <fmt/format.h>

#include <iterator>
#include <optional>

#include "kernels/base/byte_stream.hpp"
#include "runtime/accept/gemm_rate.hpp"
#include "runtime/accept/host_comparison.hpp"
#include "runtime/accept/stage.hpp"

namespace testbed {
namespace {

constexpr double load_s = 0.3;  // in which clocks rise

std::string explanation_of(FactGroup group) {
  switch (group) {
    case FactGroup::versions:
      return "testbed, its build, MPI, the kernel and, of GPUs, driver, CUDA and NCCL are the same "
             "on "
             "all ranks.";
    case FactGroup::environment:
      return "The environment variables that Open MPI, NCCL, UCX, CUDA and testbed heed are the "
             "same "
             "on all ranks.";
    case FactGroup::devices:
      return "Processor, device name, their number and ECC are the same on all hosts, and as the "
             "profile requires; no device has had an error that ECC could not correct.";
    case FactGroup::clocks:
      return "Governor and clocks, read under a load, are the same on all hosts, current ones not "
             "more than a tenth below the median, and as high as the profile requires; no GPU "
             "slows down for heat or a power brake.";
    case FactGroup::memory:
      return "No host and no device has a tenth less memory than the median; free host memory, "
             "/dev/shm and device memory are what the profile requires.";
    case FactGroup::placement:
      return "No two ranks have the same device, and the n-th ranks of all hosts have the same "
             "NICs nearest to their devices. Noted: bindings and numbers of ranks that differ "
             "between hosts, threads on fewer cores, neighbouring ranks on several hosts.";
  }
  return "";
}

// On rank 0 those of every rank; elsewhere none.
std::vector<Facts> gathered(ControlChannel& control, const Facts& mine) {
  ByteWriter out;
  for (const auto& [name, value] : mine) {
    out.put(name);
    out.put(value);
  }
  std::vector<Facts> all;
  all.reserve(static_cast<size_t>(control.size()));
  for (const Bytes& bytes : control.gather(out.take(), 0)) {
    Facts& facts = all.emplace_back();
    ByteReader in(bytes);
    while (!in.at_end()) {
      std::string name;
      in.get(name);
      in.get(facts[name]);
    }
  }
  return all;
}

class PreflightStage final : public Stage {
 public:
  std::string_view name() const override { return "preflight"; }

  std::vector<PlannedCase> plan(const AcceptPlanInput& input) const override {
    std::vector<PlannedCase> cases;
    cases.reserve(std::size(fact_group_names));
    for (size_t i = 0; i < std::size(fact_group_names); ++i) {
      const auto group = static_cast<FactGroup>(i);
      const double estimated_s = group == FactGroup::clocks ? 1.0 : 0.1;
      cases.push_back(
          {.stage = "preflight",
           .name = std::string(fact_group_names[i]),
           .explanation = explanation_of(group) +
                          " The majority is right; a host that deviates is named with both values.",
           .estimated_s = estimated_s,
           .deadline_s = input.config.timeout_s + 60.0 * estimated_s,
           .skip = std::nullopt,
           .numbers = {{"group", static_cast<int64_t>(i)}}});
    }
    return cases;
  }

  CaseResult run(const AcceptContext& context, const PlannedCase& planned) override {
    const auto group = static_cast<FactGroup>(planned.numbers.at("group"));
    // Those of a processor are not told.
    std::optional<GemmRate> loaded;
    if (group == FactGroup::clocks && context.device.kind() != "cpu") {
      loaded.emplace(context, load_s);
    }
    Facts mine;
    const auto look = [&] { mine = context.facts(); };
    agree_on(context.control, [&] { loaded ? loaded->load(look) : look(); });
    const std::vector<Facts> facts = gathered(context.control, mine);
    if (context.rank != 0) return {};
    CaseResult result{.stage = planned.stage, .name = planned.name};
    const HostComparison comparison(context.hosts, facts, context.config.allow_shared_gpu);
    comparison.compare(group, result);
    comparison.require(group, context.profile.requirements, result);
    if (group == FactGroup::placement) comparison.note_placement(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Stage> make_preflight_stage() { return std::make_unique<PreflightStage>(); }

}  // namespace testbed
