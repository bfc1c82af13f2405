# One ctest test per class, as in cases.cmake. Not under sanitizers: they do not follow the simulator's stacks.
if(NOT TESTBED_SANITIZE)
  foreach(class Headline Labels Predicted Refused Size)
    string(TOLOWER ${class} lower)
    testbed_e2e_test(e2e_simulate_${lower} simulate_test.py ${class} PROCESSORS 1)
  endforeach()
  testbed_e2e_test(e2e_simulated_bytes simulated_bytes_test.py PROCESSORS 1)
endif()
