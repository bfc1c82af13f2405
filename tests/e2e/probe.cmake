testbed_e2e_test(e2e_probe probe_test.py TIMEOUT 300)
