// rope_theta / rope_scaling / rope_parameters.
#include "runtime/config/hf_rope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/base/errors.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

void refuse_unknown_keys(const JsonObject& scaling) {
  constexpr std::array<std::string_view, 15> known{"rope_type",
                                                   "type",
                                                   "rope_theta",
                                                   "factor",
                                                   "low_freq_factor",
                                                   "high_freq_factor",
                                                   "original_max_position_embeddings",
                                                   "beta_fast",
                                                   "beta_slow",
                                                   "truncate",
                                                   "attention_factor",
                                                   "mscale",
                                                   "mscale_all_dim",
                                                   "partial_rotary_factor",
                                                   "finetuned"};
  for (const auto& [key, value] : scaling.value().items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw ConfigError(
          fmt::format("{}: key {} is not known for rope", scaling.where(), in_quotes(key)));
}

// "default" when nothing but theta is said.
std::string rope_type(const JsonObject& scaling) {
  const auto newer = scaling.find_string("rope_type");
  const auto older = scaling.find_string("type");
  if (newer && older && *newer != *older)
    scaling.fail("rope_type",
                 fmt::format("{} contradicts type {}", in_quotes(*newer), in_quotes(*older)));
  if (newer) return *newer;
  if (older) return *older;
  if (scaling.has("factor"))
    scaling.fail("rope_type", "is missing beside factor; supported: linear, llama3, yarn");
  return "default";
}

RopeKind rope_kind(const JsonObject& scaling) {
  const std::string type = rope_type(scaling);
  if (type == "default") return RopeKind::plain;
  if (type == "linear") return RopeKind::linear;
  if (type == "llama3") return RopeKind::llama3;
  if (type == "yarn") return RopeKind::yarn;
  if (type == "proportional") return RopeKind::proportional;
  scaling.fail(
      "rope_type",
      fmt::format("{} is not supported; supported: default, linear, llama3, yarn, proportional",
                  in_quotes(type)));
}

double require_number(const JsonObject& scaling, std::string_view key) {
  const auto number = scaling.find_number(key);
  if (!number) scaling.fail(key, "is missing");
  return *number;
}

std::optional<int64_t> original_positions(const JsonObject& scaling) {
  return scaling.find_int("original_max_position_embeddings", 1, 1LL << 31);
}

void read_llama3(const JsonObject& scaling, RopeConfig& rope) {
  rope.low_freq_factor = require_number(scaling, "low_freq_factor");
  rope.high_freq_factor = require_number(scaling, "high_freq_factor");
  const auto original = original_positions(scaling);
  if (!original) scaling.fail("original_max_position_embeddings", "is missing");
  rope.original_max_positions = *original;
}

// transformers treats a zero beta as absent.
double beta_or(const JsonObject& scaling, std::string_view key, double fallback) {
  const double beta = scaling.find_number(key).value_or(0);
  return beta == 0 ? fallback : beta;
}

void read_yarn(const JsonObject& scaling, int64_t max_positions, RopeConfig& rope) {
  rope.original_max_positions = original_positions(scaling).value_or(max_positions);
  rope.beta_fast = beta_or(scaling, "beta_fast", rope.beta_fast);
  rope.beta_slow = beta_or(scaling, "beta_slow", rope.beta_slow);
  rope.truncate = scaling.find_bool("truncate").value_or(true);
  rope.attention_factor = scaling.find_number("attention_factor");
  rope.mscale = scaling.find_number("mscale");
  rope.mscale_all_dim = scaling.find_number("mscale_all_dim");
}

// Of the pairs: only the proportional kind knows other fractions than 1.
double rotary_fraction(const JsonObject& scaling, RopeKind kind) {
  const double fraction = scaling.find_number("partial_rotary_factor").value_or(1.0);
  if (fraction != 1.0 && kind != RopeKind::proportional)
    scaling.fail("partial_rotary_factor", "other than 1 needs rope_type proportional");
  return fraction;
}

RopeConfig read_scaling(const JsonObject& scaling,
                        std::optional<double> outer_theta,
                        double default_theta,
                        int64_t max_positions) {
  for (const auto& [key, value] : scaling.value().items())
    if (value.is_object())
      scaling.fail(key, "is an object: rope per layer type is not supported for this family");
  refuse_unknown_keys(scaling);
  const auto inner_theta = scaling.find_number("rope_theta");
  if (inner_theta && outer_theta && *inner_theta != *outer_theta)
    scaling.fail("rope_theta",
                 fmt::format("{} contradicts the outer rope_theta {}", *inner_theta, *outer_theta));
  RopeConfig rope;
  rope.theta = inner_theta ? *inner_theta : outer_theta.value_or(default_theta);
  rope.kind = rope_kind(scaling);
  rope.rotary_fraction = rotary_fraction(scaling, rope.kind);
  if (rope.kind == RopeKind::proportional) {
    rope.factor = scaling.find_number("factor").value_or(1.0);
  } else if (rope.kind != RopeKind::plain) {
    rope.factor = require_number(scaling, "factor");
  }
  if (rope.kind == RopeKind::llama3) read_llama3(scaling, rope);
  if (rope.kind == RopeKind::yarn) read_yarn(scaling, max_positions, rope);
  return rope;
}

void refuse_partial_rotation(const JsonObject& config) {
  if (config.find_number("partial_rotary_factor").value_or(1.0) != 1.0)
    config.fail("partial_rotary_factor", "other than 1 is not supported");
}

}  // namespace

RopeConfig read_hf_rope(const JsonObject& config, int64_t max_positions, double default_theta) {
  const auto theta = config.find_number("rope_theta");
  const auto older = config.find_object("rope_scaling");
  const auto newer = config.find_object("rope_parameters");
  refuse_partial_rotation(config);
  RopeConfig rope;
  rope.theta = theta.value_or(default_theta);
  if (newer) rope = read_scaling(*newer, theta, default_theta, max_positions);
  if (!older) return rope;
  const RopeConfig from_older =
      read_scaling(*older, newer ? std::optional(rope.theta) : theta, default_theta, max_positions);
  if (newer && !(from_older == rope))
    config.fail("rope_parameters", "contradicts rope_scaling; keep one of them");
  return from_older;
}

namespace {

LayerRopes read_per_layer_type(const JsonObject& parameters,
                               int64_t max_positions,
                               const LayerRopes& defaults) {
  for (const auto& [key, value] : parameters.value().items())
    if (key != "full_attention" && key != "sliding_attention")
      parameters.fail(key, "is no layer type; supported: full_attention, sliding_attention");
  const auto read = [&](const char* type, const RopeConfig& otherwise) {
    const auto rope = parameters.find_object(type);
    if (!rope) return otherwise;
    return read_scaling(*rope, std::nullopt, otherwise.theta, max_positions);
  };
  return {.full = read("full_attention", defaults.full),
          .window = read("sliding_attention", defaults.window)};
}

LayerRopes read_global_and_local(const JsonObject& config,
                                 int64_t max_positions,
                                 const LayerRopes& defaults) {
  LayerRopes ropes = defaults;
  const auto theta = config.find_number("rope_theta");
  if (const auto scaling = config.find_object("rope_scaling"))
    ropes.full = read_scaling(*scaling, theta, defaults.full.theta, max_positions);
  else
    ropes.full.theta = theta.value_or(defaults.full.theta);
  ropes.window.theta = config.find_number("rope_local_base_freq").value_or(defaults.window.theta);
  return ropes;
}

}  // namespace

LayerRopes read_hf_layer_ropes(const JsonObject& config,
                               int64_t max_positions,
                               const LayerRopes& defaults) {
  refuse_partial_rotation(config);
  const auto newer = config.find_object("rope_parameters");
  if (!newer) return read_global_and_local(config, max_positions, defaults);
  const LayerRopes ropes = read_per_layer_type(*newer, max_positions, defaults);
  for (const char* older : {"rope_theta", "rope_scaling", "rope_local_base_freq"})
    if (config.has(older) && !(read_global_and_local(config, max_positions, ropes) == ropes))
      config.fail("rope_parameters", fmt::format("contradicts {}; keep one of them", older));
  return ropes;
}

}  // namespace testbed
