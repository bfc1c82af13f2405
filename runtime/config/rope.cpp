// Rotary frequencies of each RopeKind.
#include "runtime/config/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

constexpr double two_pi = 2 * std::numbers::pi;

// Short wavelengths stay, long ones are divided by factor, those between are blended linearly in
// the number of turns over the original context.
double llama3_frequency(double f, const RopeConfig& rope) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const double wavelength = two_pi / f;
  if (wavelength < original / rope.high_freq_factor) return f;
  if (wavelength > original / rope.low_freq_factor) return f / rope.factor;
  const double keep = (original / wavelength - rope.low_freq_factor) /
                      (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - keep) * f / rope.factor + keep * f;
}

// The (fractional) pair index whose frequency makes `turns` turns over the original context.
double yarn_dimension(double turns, const RopeConfig& rope, int64_t head_dim) {
  const auto original = static_cast<double>(rope.original_max_positions);
  return static_cast<double>(head_dim) * std::log(original / (turns * two_pi)) /
         (2 * std::log(rope.theta));
}

void scale_yarn(std::vector<double>& inv_freq, const RopeConfig& rope, int64_t head_dim) {
  double low = yarn_dimension(rope.beta_fast, rope, head_dim);
  double high = yarn_dimension(rope.beta_slow, rope, head_dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] = inv_freq[i] / rope.factor * ramp + inv_freq[i] * (1 - ramp);
  }
}

double yarn_multiplier(const RopeConfig& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  const double mscale = rope.mscale.value_or(0);
  const double all_dim = rope.mscale_all_dim.value_or(0);
  if (mscale != 0 && all_dim != 0)
    return yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, all_dim);
  return yarn_mscale(rope.factor, 1.0);
}

// Pairs behind the rotated ones stand still.
void cut_proportional(std::vector<double>& inv_freq, const RopeConfig& rope, int64_t head_dim) {
  const double n_rotated = std::floor(rope.rotary_fraction * static_cast<double>(head_dim) / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i)
    inv_freq[i] = static_cast<double>(i) < n_rotated ? inv_freq[i] / rope.factor : 0.0;
}

}  // namespace

double yarn_mscale(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

RopeTable rope_table(const RopeConfig& rope, int64_t head_dim) {
  CHECK(head_dim > 0 && head_dim % 2 == 0);
  RopeTable table{.inv_freq = {}, .multiplier = 1.0, .interleaved = rope.interleaved};
  table.inv_freq.reserve(static_cast<size_t>(head_dim / 2));
  for (int64_t i = 0; i < head_dim; i += 2)
    table.inv_freq.push_back(
        std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(head_dim)));
  switch (rope.kind) {
    case RopeKind::plain:
      break;
    case RopeKind::linear:
      for (double& f : table.inv_freq) f /= rope.factor;
      break;
    case RopeKind::llama3:
      for (double& f : table.inv_freq) f = llama3_frequency(f, rope);
      break;
    case RopeKind::yarn:
      scale_yarn(table.inv_freq, rope, head_dim);
      table.multiplier = yarn_multiplier(rope);
      break;
    case RopeKind::proportional:
      cut_proportional(table.inv_freq, rope, head_dim);
      break;
  }
  return table;
}

RopeTable rope_table_of_layer(const ModelConfig& config, int64_t layer) {
  const LayerShape shape = config.layer(layer);
  return rope_table(shape.window_rope ? *config.window_rope : config.rope,
                    config.mla ? config.mla->rope_dim : shape.head_dim);
}

}  // namespace testbed
