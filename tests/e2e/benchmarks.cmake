testbed_e2e_test(e2e_ratio_page ratio_page_test.py PROCESSORS 1)
