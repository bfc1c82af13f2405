// --weight-dtype and --weight-group: which format the model's matrices are to be held in.
#pragma once

#include <optional>
#include <string>

#include "kernels/base/weight_format.hpp"
#include "runtime/config/command_line_parser.hpp"

namespace testbed {

// As given; the two make sense together only.
struct WeightOptions {
  std::string dtype = "auto";
  std::optional<std::string> group;
};

void add_weight_options(OptionParser& parser, WeightOptions& options);

// nullopt: as stored. Throws ConfigError listing the groups that the dtype may have.
std::optional<WeightFormat> weight_format_of(const WeightOptions& options);

}  // namespace testbed
