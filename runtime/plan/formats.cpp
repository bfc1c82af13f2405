#include "runtime/plan/formats.hpp"

#include "runtime/config/option_values.hpp"

namespace testbed::plan {

NumberFormat format_by_name(const std::string& name) {
  Choices<NumberFormat> choices;
  for (const NumberFormat& format : number_formats) choices.emplace_back(format.name, format);
  return choose("--weight-dtype", name, choices);
}

NumberFormat format_of(DType stored) {
  if (is_quantised(stored)) return bf16_format;
  return format_by_name(std::string(dtype_name(stored)));
}

}  // namespace testbed::plan
