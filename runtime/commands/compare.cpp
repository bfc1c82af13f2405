#include "runtime/commands/compare.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "kernels/base/errors.hpp"
#include "runtime/commands/outputs.hpp"
#include "runtime/report/atomic_file.hpp"
#include "runtime/report/compare_report.hpp"

namespace testbed {

int run_compare(const CompareConfig& config) {
  const ComparedRecord a = read_record(config.a);
  const ComparedRecord b = read_record(config.b);
  const OutputConfig& output = config.output;
  if (output.json) write_file(*output.json, comparison_json(a, b));
  if (!output.quiet) fmt::print(terminal(output), "{}", comparison_table(a, b));
  return static_cast<int>(ExitCode::ok);
}

}  // namespace testbed
