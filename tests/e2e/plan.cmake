testbed_e2e_test(e2e_plan plan_test.py)
