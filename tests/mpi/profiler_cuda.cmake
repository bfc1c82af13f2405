# nvtx_stand_in: tests/unit/profiler.cmake.
if(TESTBED_HAS_CUDA_HEADERS)
  testbed_mpi_executable(profiler_cuda_test testbed_gpu_emulated testbed_launch)
  add_dependencies(profiler_cuda_test nvtx_stand_in)
  target_compile_definitions(profiler_cuda_test PRIVATE TESTBED_NVTX_STAND_IN="$<TARGET_FILE:nvtx_stand_in>")
  testbed_mpi_test(profiler_cuda_np1 profiler_cuda_test 1 TIMEOUT 180)
endif()
