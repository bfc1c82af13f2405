testbed_e2e_test(e2e_accept_links accept_links_test.py TIMEOUT 300)
