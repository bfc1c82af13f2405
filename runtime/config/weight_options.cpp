#include "runtime/config/weight_options.hpp"

#include "runtime/config/option_values.hpp"

namespace testbed {

using namespace weight_formats;

void add_weight_options(OptionParser& parser, WeightOptions& options) {
  parser.value("--weight-dtype",
               "auto|bf16|f32|int8|int4|fp8",
               "Default auto: as stored",
               [&options](const auto& option, const auto& text) {
                 options.dtype = choose<std::string>(option,
                                                     text,
                                                     {{"auto", "auto"},
                                                      {"bf16", "bf16"},
                                                      {"f32", "f32"},
                                                      {"int8", "int8"},
                                                      {"int4", "int4"},
                                                      {"fp8", "fp8"}});
               });
  parser.value("--weight-group",
               "32|128|row|tensor|block",
               "Weights that share a scale (default: int8, int4 32; fp8 row; block is 128 x 128)",
               [&options](const auto& option, const auto& text) {
                 options.group = require_text(option, text);
               });
}

std::optional<WeightFormat> weight_format_of(const WeightOptions& options) {
  constexpr const char* group_option = "--weight-group";
  const std::string& dtype = options.dtype;
  if (dtype == "int8") {
    return choose<WeightFormat>(group_option,
                                options.group.value_or("32"),
                                {{"32", int8_g32}, {"128", int8_g128}, {"row", int8_row}});
  }
  if (dtype == "int4") {
    return choose<WeightFormat>(
        group_option, options.group.value_or("32"), {{"32", int4_g32}, {"128", int4_g128}});
  }
  if (dtype == "fp8") {
    return choose<WeightFormat>(
        group_option,
        options.group.value_or("row"),
        {{"tensor", fp8_tensor}, {"row", fp8_row}, {"block", fp8_block128}});
  }
  if (options.group) {
    throw ConfigError(fmt::format("{} {}: needs --weight-dtype int8, int4 or fp8; it is {}",
                                  group_option,
                                  *options.group,
                                  dtype));
  }
  if (dtype == "auto") return std::nullopt;
  return dtype == "f32" ? DType::F32 : DType::BF16;
}

}  // namespace testbed
