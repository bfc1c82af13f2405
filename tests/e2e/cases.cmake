# One ctest test per class, so that a class's time-out is its own.
foreach(class Splits Bytes Reference)
  string(TOLOWER ${class} lower)
  testbed_e2e_test(e2e_${lower} cases_test.py ${class} TIMEOUT 240)
endforeach()
foreach(class Inputs Outputs)  # mostly of one process
  string(TOLOWER ${class} lower)
  testbed_e2e_test(e2e_${lower} cases_test.py ${class} TIMEOUT 240 PROCESSORS 1)
endforeach()
testbed_e2e_test(e2e_failures failures_test.py TIMEOUT 240)
