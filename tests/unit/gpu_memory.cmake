if(TESTBED_HAS_CUDA_HEADERS)
  testbed_unit_test(gpu_memory_test testbed_comm_nccl_emulated)
endif()
