# What starts jobs. Exit code 77: this machine cannot run it, and the test says why.
testbed_e2e_test(e2e_launch launch_test.py Launch TIMEOUT 300)
testbed_e2e_test(e2e_launch_verdict launch_test.py Verdict PROCESSORS 1)
testbed_e2e_test(e2e_launch_files launch_files_test.py PROCESSORS 1)
if(NOT TESTBED_SANITIZE)  # daemons and namespaces of others
  testbed_e2e_test(e2e_slurm slurm_test.py TIMEOUT 400)
  set(testbed_may_skip e2e_slurm)
  foreach(class Job Acceptance)
    string(TOLOWER ${class} lower)
    testbed_e2e_test(e2e_two_hosts_${lower} two_hosts_test.py ${class} TIMEOUT 400)
    list(APPEND testbed_may_skip e2e_two_hosts_${lower})
  endforeach()
  set_tests_properties(${testbed_may_skip} PROPERTIES SKIP_RETURN_CODE 77)
endif()
