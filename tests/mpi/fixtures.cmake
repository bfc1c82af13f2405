testbed_mpi_executable(fixtures_test testbed_launch)
# 16 models in a quarter of the meshes of 8 ranks are some 120 runs: 50 s on two idle cores, three times that beside other work.
foreach(n_ranks 1 2 3 4 6 8)
  testbed_mpi_test(fixtures_np${n_ranks} fixtures_test ${n_ranks} TIMEOUT 900)
endforeach()
