#include "runtime/commands/plan.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "kernels/base/errors.hpp"
#include "runtime/commands/outputs.hpp"
#include "runtime/config/cluster_config.hpp"
#include "runtime/config/device_config.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/plan/claims.hpp"
#include "runtime/plan/plan_report.hpp"
#include "runtime/report/atomic_file.hpp"
#include "runtime/report/plan_json.hpp"
#include "runtime/report/plan_table.hpp"

namespace testbed {
namespace {

plan::PlanInputs inputs_of(const PlanConfig& config) {
  plan::PlanInputs in;
  in.model = read_model_config(locate_model(config.model));
  if (config.layers) in.model = truncated_to(in.model, *config.layers);
  in.cluster = read_cluster(config.cluster);
  if (config.device) {
    in.cluster.device = read_device(*config.device);
    in.cluster.name += " with " + in.cluster.device.name;
  }
  const ParallelConfig& parallel = config.parallel;
  in.split = {.tp = parallel.tp,
              .pp = parallel.pp,
              .cp = parallel.cp,
              .ep = parallel.ep,
              .dp = parallel.dp.value_or(1)};
  in.batch = config.batch;
  in.context = config.context;
  in.prompt_tokens = config.prompt_tokens;
  in.formats.weights = config.weight_format ? plan::number_format(*config.weight_format)
                                            : plan::format_of(in.model.stored_dtype);
  return in;
}

}  // namespace

int run_plan(const PlanConfig& config) {
  check_all_writable({&config.output.json, &config.claims});
  if (config.claims) {
    write_file(*config.claims,
               plan::claims_markdown(plan::all_claims(), plan::read_claim_inputs()));
  }
  if (config.model.empty()) return static_cast<int>(ExitCode::ok);
  const plan::PlanReport report = plan::make_plan(inputs_of(config));
  if (config.output.json) write_file(*config.output.json, plan_json(report));
  if (!config.output.quiet) {
    FILE* const out = config.claims == "-" ? stderr : terminal(config.output);
    fmt::print(out, "{}", plan_table(report));
  }
  return static_cast<int>(ExitCode::ok);
}

}  // namespace testbed
