testbed_unit_test(plan_claims_test testbed_plan fmt::fmt)
testbed_unit_test(plan_test testbed_plan fmt::fmt)
