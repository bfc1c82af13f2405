testbed_e2e_test(e2e_plan plan_test.py PROCESSORS 1)
testbed_e2e_test(e2e_plan_families plan_families_test.py TIMEOUT 240 PROCESSORS 1)
