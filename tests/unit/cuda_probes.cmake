if(TESTBED_HAS_CUDA_HEADERS)
  testbed_unit_test(cuda_probes_test testbed_cuda_probes_emulated)
  testbed_unit_test(cuda_probe_timing_test testbed_probe testbed_cuda_emulated)
endif()
