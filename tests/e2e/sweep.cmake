if(NOT TESTBED_SANITIZE)  # it simulates, see simulate.cmake
  testbed_e2e_test(e2e_sweep sweep_test.py TIMEOUT 240 PROCESSORS 1)
endif()
