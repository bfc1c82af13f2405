# launch/cuda on the emulation; not sanitized, which takes too long.
if(TESTBED_HAS_CUDA_HEADERS AND NOT TESTBED_SANITIZE)
  testbed_mpi_executable(probe_gpu_test testbed_gpu_emulated testbed_launch)
  foreach(n 2 4)
    testbed_mpi_test(probe_gpu_np${n} probe_gpu_test ${n} TIMEOUT 240)
  endforeach()
endif()
