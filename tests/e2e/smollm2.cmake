testbed_e2e_test(e2e_smollm2 smollm2_test.py TIMEOUT 300 FIXTURES smollm2)
