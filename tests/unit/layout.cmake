testbed_unit_test(nccl_log_test testbed_comm)
testbed_unit_test(nccl_algorithms_test testbed_comm)
testbed_unit_test(layout_test testbed_comm)
testbed_unit_test(infiniband_test testbed_comm)
testbed_unit_test(placement_test testbed_launch)

# A stand-in for NVML, whole, of an older driver, and without a driver.
foreach(kind "" _OLD _BROKEN)
  string(TOLOWER "nvml_stand_in${kind}" library)
  add_library(${library} MODULE ${CMAKE_CURRENT_SOURCE_DIR}/nvml_stand_in.cpp)
  target_link_libraries(${library} PRIVATE testbed_options)
  if(kind)
    target_compile_definitions(${library} PRIVATE TESTBED_NVML${kind})
  endif()
endforeach()
testbed_unit_test(nvml_test testbed_nvml testbed_launch)
add_dependencies(nvml_test nvml_stand_in nvml_stand_in_old nvml_stand_in_broken)
target_compile_definitions(
  nvml_test PRIVATE TESTBED_NVML_STAND_IN="$<TARGET_FILE:nvml_stand_in>"
                    TESTBED_NVML_OLD_STAND_IN="$<TARGET_FILE:nvml_stand_in_old>"
                    TESTBED_NVML_BROKEN_STAND_IN="$<TARGET_FILE:nvml_stand_in_broken>")
