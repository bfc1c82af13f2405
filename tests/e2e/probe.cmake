if(NOT TESTBED_SANITIZE)  # it simulates on what it measured, see simulate.cmake
  testbed_e2e_test(e2e_probe probe_test.py TIMEOUT 300)
endif()
