if(TESTBED_HAS_CUDA_HEADERS)
  testbed_unit_test(cuda_attention_test testbed_cuda_emulated)
  testbed_unit_test(cuda_attention_runs_test testbed_cuda_emulated nlohmann_json::nlohmann_json)
endif()
