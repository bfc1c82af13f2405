testbed_e2e_test(e2e_accept_faults accept_faults_test.py AcceptFaults TIMEOUT 300)
testbed_e2e_test(e2e_run_faults accept_faults_test.py Run TIMEOUT 180)
