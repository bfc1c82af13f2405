// The sections of the plan's table (plan_table.hpp).
#pragma once

#include <string>

#include "runtime/plan/plan_report.hpp"
#include "runtime/report/table_parts.hpp"

namespace testbed::table {

std::string human_flops(double flops);  // "1.23 TFLOP"
std::string milliseconds(double seconds);
std::string split_text(const plan::Split& split);

void add_step(Lines& out, const char* name, const plan::StepPlanned& step);
void add_fits(Lines& out, const plan::PlanReport& report);
void add_batch_limit(Lines& out, const plan::PlanReport& report);
void add_levers(Lines& out, const plan::PlanReport& report);
void add_training(Lines& out, const plan::PlanReport& report);
void add_bubbles(Lines& out, const plan::PlanReport& report);

}  // namespace testbed::table
