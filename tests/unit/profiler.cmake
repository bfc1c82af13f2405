# What a profiler is told, by a stand-in for one.
if(TESTBED_HAS_CUDA_HEADERS)
  add_library(nvtx_stand_in MODULE ${CMAKE_CURRENT_SOURCE_DIR}/nvtx_stand_in.cpp)
  target_link_libraries(nvtx_stand_in PRIVATE testbed_options)
  target_include_directories(nvtx_stand_in SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  testbed_unit_test(profiler_test testbed_cuda_emulated)
  add_dependencies(profiler_test nvtx_stand_in)
  target_compile_definitions(profiler_test PRIVATE TESTBED_NVTX_STAND_IN="$<TARGET_FILE:nvtx_stand_in>")
endif()
