testbed_mpi_executable(counters_test testbed_launch)
foreach(n_ranks 1 2)
  testbed_mpi_test(counters_np${n_ranks} counters_test ${n_ranks} TIMEOUT 180)
endforeach()
