// Figures that circulate in the field, each with the value recomputed from presets and closed
// forms. One list: `testbed plan --claims` writes it to docs/claims.md, tests/unit/plan_claims_test
// checks it row by row.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/cluster_spec.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed::plan {

// The presets that claims are about.
struct ClaimInputs {
  ModelConfig llama2_70b;
  ModelConfig llama3_70b;
  ModelConfig gemma2_27b;
  ModelConfig gemma3_27b;
  ModelConfig gemma4_26b_a4b;
  ModelConfig deepseek_v2;
  ModelConfig deepseek_v3;
  DeviceSpec p100;
  DeviceSpec v100;
  DeviceSpec a100;  // 80 GB
  DeviceSpec h100;  // SXM
  DeviceSpec h200;
  DeviceSpec b200;
  LinkSpec nvlink4;
  LinkSpec pcie5_x16;
};
ClaimInputs read_claim_inputs();

struct Claim {
  std::string_view row;          // what it is about: a section of docs/claims.md
  std::string_view text;         // what is said
  std::string_view circulating;  // the figure, with the digits it is said with; or "never"
  std::string_view unit;
  std::function<double(const ClaimInputs&)> recompute;  // infinite: never
  std::string_view note = {};  // what the figure is of, or on what it depends
  double step = 0.0;           // what it is rounded to; 0: its last digit
};

using Say = std::function<void(Claim)>;  // adds a claim to its section

struct RecomputedClaim {
  const Claim* claim = nullptr;
  double value = 0.0;
  bool holds = false;  // value, rounded as the figure is, equals it
};

// The sections, in order; claims_of_* are their files.
std::vector<Claim> all_claims();
std::vector<Claim> roofline_claims();
std::vector<Claim> decode_claims();
std::vector<Claim> memory_claims();
std::vector<Claim> expert_claims();
std::vector<Claim> training_claims();
std::vector<Claim> parallel_claims();
std::vector<Claim> chip_claims();

RecomputedClaim recomputed(const Claim& claim, const ClaimInputs& inputs);

// docs/claims.md: claim, figure, recomputed, unit, verdict.
std::string claims_markdown(const std::vector<Claim>& claims, const ClaimInputs& inputs);

}  // namespace testbed::plan
