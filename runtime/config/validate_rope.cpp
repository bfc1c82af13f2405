// Rope's part of validate().
#include "runtime/config/validation.hpp"

namespace testbed {
namespace {

void check_yarn(const RopeConfig& rope, const std::string& source) {
  require(positive(rope.beta_slow) && positive(rope.beta_fast) && rope.beta_slow <= rope.beta_fast,
          source,
          "rope needs 0 < beta_slow <= beta_fast");
  require(!rope.attention_factor || positive(*rope.attention_factor),
          source,
          "rope attention_factor must be above 0");
  for (const auto& mscale : {rope.mscale, rope.mscale_all_dim})
    require(!mscale || (std::isfinite(*mscale) && *mscale >= 0),
            source,
            "rope mscale and mscale_all_dim must not be negative");
}

}  // namespace

void check_rope(const RopeConfig& rope, const std::string& source) {
  require(positive(rope.theta) && rope.theta > 1, source, "rope theta must be above 1");
  require(positive(rope.rotary_fraction) && rope.rotary_fraction <= 1,
          source,
          "rope rotary_fraction must be above 0 and at most 1");
  if (rope.kind == RopeKind::plain) return;
  require(positive(rope.factor) && rope.factor >= 1, source, "rope factor must be at least 1");
  if (rope.kind == RopeKind::linear || rope.kind == RopeKind::proportional) return;
  require(rope.original_max_positions >= 1 && rope.original_max_positions <= (1LL << 31),
          source,
          "rope original_max_positions must be a positive number of tokens");
  if (rope.kind == RopeKind::yarn) return check_yarn(rope, source);
  require(positive(rope.low_freq_factor) && positive(rope.high_freq_factor) &&
              rope.low_freq_factor < rope.high_freq_factor,
          source,
          "rope needs 0 < low_freq_factor < high_freq_factor");
}

}  // namespace testbed
