// Claims: training with Adam.
#include "runtime/plan/claims.hpp"
#include "runtime/plan/fits.hpp"
#include "runtime/plan/training.hpp"

namespace testbed::plan {
namespace {

using In = const ClaimInputs&;

double adam_bytes(In in) {
  return static_cast<double>(AdamBytes{}.total() * in.llama3_70b.n_parameters());
}

void say_training(const Say& say) {
  const std::string_view row = "Training with Adam";
  say({row, "mixed precision", "16", "B/parameter", [](In) {
         return static_cast<double>(AdamBytes{}.total());
       }});
  say({row,
       "llama3-70b: H100 of 80 GiB",
       "14",
       "cards",
       [](In in) {
         return static_cast<double>(
             cards_needed(adam_bytes(in), static_cast<double>(in.h100.memory_bytes)));
       },
       "before activations"});
  say({row,
       "llama3-70b: cards of 80 GB",
       "15",
       "cards",
       [](In in) { return static_cast<double>(cards_needed(adam_bytes(in), 80e9)); },
       "before activations"});
  say({row, "FLOPs a token and parameter", "6", "FLOP", [](In) {
         return static_cast<double>(training_flops_per_token(1, false));
       }});
  say({row,
       "recomputing activations adds",
       "30",
       "%",
       [](In) {
         return 100.0 * (static_cast<double>(training_flops_per_token(1, true)) /
                             static_cast<double>(training_flops_per_token(1, false)) -
                         1.0);
       },
       "about; one more forward pass is a third",
       10.0});
  constexpr int64_t many = 1 << 20;
  say({row,
       "ZeRO stage 1 saves",
       "4",
       "x",
       [](In) { return zero_saving(1, many); },
       "of many devices"});
  say({row,
       "ZeRO stage 2 saves",
       "8",
       "x",
       [](In) { return zero_saving(2, many); },
       "of many devices"});
  say({row,
       "ZeRO stage 3 on 64 devices saves",
       "64",
       "x",
       [](In) { return zero_saving(3, 64); },
       "the number of devices"});
  say({row, "ZeRO stage 3: more traffic", "50", "%", [](In) {
         return 100.0 * (static_cast<double>(zero_traffic_per_parameter(3)) /
                             static_cast<double>(zero_traffic_per_parameter(0)) -
                         1.0);
       }});
  say({row, "all-reduces that the backward pass adds to a layer", "2", "", [](In) {
         return static_cast<double>(backward_all_reduces_per_layer);
       }});
}

}  // namespace

std::vector<Claim> training_claims() {
  std::vector<Claim> claims;
  say_training([&claims](Claim claim) { claims.push_back(std::move(claim)); });
  return claims;
}

}  // namespace testbed::plan
