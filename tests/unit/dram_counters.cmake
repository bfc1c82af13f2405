# DRAM's counters, by a stand-in for CUPTI and the driver.
if(TESTBED_HAS_CUDA_HEADERS)
  add_library(cupti_stand_in MODULE ${CMAKE_CURRENT_SOURCE_DIR}/cupti_stand_in.cpp)
  target_link_libraries(cupti_stand_in PRIVATE testbed_options)
  target_include_directories(cupti_stand_in SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  testbed_unit_test(dram_counters_test testbed_cupti)
  add_dependencies(dram_counters_test cupti_stand_in)
  target_compile_definitions(dram_counters_test PRIVATE TESTBED_CUPTI_STAND_IN="$<TARGET_FILE:cupti_stand_in>")
endif()
