#include "runtime/plan/claims.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "kernels/base/check.hpp"
#include "runtime/config/device_config.hpp"
#include "runtime/config/link_config.hpp"
#include "runtime/config/presets.hpp"

namespace testbed::plan {
namespace {

constexpr std::string_view never = "never";

int decimals_of(std::string_view figure) {
  const size_t point = figure.find('.');
  return point == std::string_view::npos ? 0 : static_cast<int>(figure.size() - point - 1);
}

double value_of(std::string_view figure) {
  if (figure == never) return std::numeric_limits<double>::infinity();
  double value = 0.0;
  const auto [end, error] = std::from_chars(figure.data(), figure.data() + figure.size(), value);
  CHECK(error == std::errc{} && end == figure.data() + figure.size());
  return value;
}

// One digit more than the figure has, so that the reader can round; whole numbers as they are.
std::string value_text(const RecomputedClaim& claim) {
  if (!std::isfinite(claim.value)) return std::string(never);
  if (claim.value == std::round(claim.value)) return fmt::format("{:.0f}", claim.value);
  const std::string_view figure = claim.claim->circulating;
  return fmt::format("{:.{}f}", claim.value, figure == never ? 0 : decimals_of(figure) + 1);
}

std::string verdict_of(const RecomputedClaim& claim) {
  std::string verdict = claim.holds ? "holds" : "does not hold";
  if (!claim.claim->note.empty()) verdict += fmt::format(": {}", claim.claim->note);
  return verdict;
}

ModelConfig read_model(const std::string& name) { return read_model_config(locate_model(name)); }

}  // namespace

ClaimInputs read_claim_inputs() {
  return {.llama2_70b = read_model("llama2-70b"),
          .llama3_70b = read_model("llama3-70b"),
          .gemma2_27b = read_model("gemma2-27b"),
          .gemma3_27b = read_model("gemma3-27b"),
          .gemma4_26b_a4b = read_model("gemma4-26b-a4b"),
          .deepseek_v2 = read_model("deepseek-v2"),
          .deepseek_v3 = read_model("deepseek-v3"),
          .p100 = read_device("p100"),
          .v100 = read_device("v100"),
          .a100 = read_device("a100-80"),
          .h100 = read_device("h100-sxm"),
          .h200 = read_device("h200"),
          .b200 = read_device("b200"),
          .nvlink4 = read_link("nvlink4"),
          .pcie5_x16 = read_link("pcie5-x16")};
}

std::vector<Claim> all_claims() {
  std::vector<Claim> all;
  for (const auto& section : {roofline_claims(),
                              decode_claims(),
                              memory_claims(),
                              expert_claims(),
                              training_claims(),
                              parallel_claims(),
                              chip_claims()}) {
    all.insert(all.end(), section.begin(), section.end());
  }
  return all;
}

RecomputedClaim recomputed(const Claim& claim, const ClaimInputs& inputs) {
  RecomputedClaim result{.claim = &claim, .value = claim.recompute(inputs)};
  const double said = value_of(claim.circulating);
  if (!std::isfinite(said) || !std::isfinite(result.value)) {
    result.holds = said == result.value;
    return result;
  }
  const double step =
      claim.step > 0.0 ? claim.step : std::pow(10.0, -decimals_of(claim.circulating));
  // Half a step either way, and what binary fractions add.
  result.holds = std::abs(result.value - said) <= step / 2.0 * (1.0 + 1e-9);
  return result;
}

std::string claims_markdown(const std::vector<Claim>& claims, const ClaimInputs& inputs) {
  std::string text =
      "# Claims\n\n"
      "Figures that circulate in the field, recomputed from the presets in `configs/` and the "
      "closed forms in\n`runtime/plan/`. Written by `testbed plan --claims docs/claims.md`; a "
      "test compares. \"Nominal\" counts all\nparameters as read. GB is 10⁹ bytes, GiB 2³⁰; "
      "links are one direction.\n";
  std::string_view row;
  for (const Claim& claim : claims) {
    if (claim.row != row) {
      row = claim.row;
      text += fmt::format(
          "\n## {}\n\n| claim | said | recomputed | unit | verdict |\n|---|--:|--:|---|---|\n",
          row);
    }
    const RecomputedClaim result = recomputed(claim, inputs);
    text += fmt::format("| {} | {} | {} | {} | {} |\n",
                        claim.text,
                        claim.circulating,
                        value_text(result),
                        claim.unit,
                        verdict_of(result));
  }
  return text;
}

}  // namespace testbed::plan
