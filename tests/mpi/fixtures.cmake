testbed_mpi_executable(fixtures_test testbed_launch)
foreach(n_ranks 1 2 3 4 8)
  testbed_mpi_test(fixtures_np${n_ranks} fixtures_test ${n_ranks} TIMEOUT 300)
endforeach()
