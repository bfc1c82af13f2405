# launch/cuda on the emulation; not sanitized, which takes too long: the unit tests of kernels are.
if(TESTBED_HAS_CUDA_HEADERS AND NOT TESTBED_SANITIZE)
  testbed_mpi_executable(fixtures_cuda_test testbed_gpu_emulated testbed_launch)
  foreach(n_ranks 1 2 4)
    testbed_mpi_test(fixtures_cuda_np${n_ranks} fixtures_cuda_test ${n_ranks} TIMEOUT 900)
  endforeach()
endif()
