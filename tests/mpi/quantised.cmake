testbed_mpi_executable(quantised_test testbed_launch)
foreach(n_ranks 1 2 4)
  testbed_mpi_test(quantised_np${n_ranks} quantised_test ${n_ranks} TIMEOUT 120)
endforeach()

testbed_mpi_executable(perplexity_test testbed_launch)
# Minutes under sanitizers, which the formats' other tests have run under.
if(NOT TESTBED_SANITIZE)
  testbed_mpi_test(perplexity perplexity_test 1 TIMEOUT 240 FIXTURES smollm2)
  # One rank with threads on all cores.
  set_tests_properties(perplexity PROPERTIES PROCESSORS 2)
  set_property(TEST perplexity APPEND PROPERTY ENVIRONMENT OMPI_MCA_hwloc_base_binding_policy=none)
endif()
