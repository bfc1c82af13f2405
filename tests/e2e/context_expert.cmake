# One ctest test per class, as in cases.cmake.
foreach(class Context Experts Numbers)
  string(TOLOWER ${class} lower)
  testbed_e2e_test(e2e_${lower} context_expert_test.py ${class} TIMEOUT 300)
endforeach()
