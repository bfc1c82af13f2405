# How a test is declared. Layers are labels: unit, mpi (also mpi2 for two ranks), golden, e2e, fuzz; gpu with TESTBED_GPU_TESTS.
# PROCESSORS keeps tests of several ranks from sharing cores with others under ctest -j.
find_package(GTest REQUIRED)
include(GoogleTest)

set(testbed_mpirun ${PROJECT_SOURCE_DIR}/scripts/mpirun.sh)
set(testbed_test_environment TESTBED_SOURCE_DIR=${PROJECT_SOURCE_DIR} TESTBED_MPIRUN=${testbed_mpirun}
                             TESTBED_SMOLLM2=${PROJECT_SOURCE_DIR}/models/SmolLM2-135M-Instruct.Q4_1.gguf)
if(TESTBED_SANITIZE)
  # Where Open MPI's plugins are unloaded, only a full call stack names the library that a leak comes from
  # (scripts/lsan_openmpi.supp). It makes a test up to seven times as slow: tests/mpi keep the plugins instead.
  set(testbed_mpi_sanitizer "ASAN_OPTIONS=string_append:,fast_unwind_on_malloc=0")
endif()
# A test's own source is mostly compile time (14 s sanitized at -O1, 7 s at -O0); what it tests keeps the preset's optimisation.
set(testbed_test_compile_options -O1)
if(TESTBED_SANITIZE)
  set(testbed_test_compile_options -O0)
endif()
if(TESTBED_SANITIZE)
  testbed_precompiled_headers(testbed_test_precompiled ${testbed_standard_headers} <gmock/gmock.h> <gtest/gtest.h>)
  target_link_libraries(testbed_test_precompiled PRIVATE GTest::gtest GTest::gmock)
  target_compile_definitions(testbed_test_precompiled PRIVATE TESTBED_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_compile_options(testbed_test_precompiled PRIVATE ${testbed_test_compile_options})
endif()
option(TESTBED_GPU_TESTS "Have ctest run the tests that need a GPU (tests/gpu.sh does)" OFF)
set(TESTBED_TIMEOUT_SCALE 1 CACHE STRING "Factor on every test's time limit (sanitizers, tests/run.sh --all)")
add_custom_target(unit_tests)
add_custom_target(mpi_tests)
add_custom_target(mpi2_tests) # what the tests labelled mpi2 start
add_custom_target(golden_tests)

function(testbed_compile_as_test name)
  target_link_libraries(${name} PRIVATE testbed_options GTest::gtest GTest::gmock)
  target_compile_definitions(${name} PRIVATE TESTBED_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE ${testbed_test_compile_options})
  if(TESTBED_SANITIZE)
    target_link_libraries(${name} PRIVATE fmt::fmt) # as what is precompiled
    target_precompile_headers(${name} REUSE_FROM testbed_test_precompiled)
  endif()
endfunction()

# One process, one ctest test per TEST.
function(testbed_test_of_one_process layer name)
  add_executable(${name} ${PROJECT_SOURCE_DIR}/tests/${layer}/${name}.cpp)
  target_link_libraries(${name} PRIVATE ${ARGN} GTest::gtest_main)
  testbed_compile_as_test(${name})
  math(EXPR timeout "120 * ${TESTBED_TIMEOUT_SCALE}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${layer} TIMEOUT ${timeout})
  add_dependencies(${layer}_tests ${name})
endfunction()

# testbed_unit_test(NAME libraries...): tests/unit/NAME.cpp. testbed_golden_test: tests/golden/NAME.cpp, exact simulated times;
# not under sanitizers, which do not follow the simulator's stacks.
function(testbed_unit_test name)
  testbed_test_of_one_process(unit ${name} ${ARGN})
endfunction()
function(testbed_golden_test name)
  if(NOT TESTBED_SANITIZE)
    testbed_test_of_one_process(golden ${name} ${ARGN})
  endif()
endfunction()

# testbed_mpi_executable(NAME libraries...): tests/mpi/NAME.cpp, with its own main() (MPI_Init first); GoogleTest is linked.
# A rank on which something failed must return non-zero: mpirun then does too.
function(testbed_mpi_executable name)
  add_executable(${name} ${PROJECT_SOURCE_DIR}/tests/mpi/${name}.cpp)
  target_link_libraries(${name} PRIVATE ${ARGN} MPI::MPI_CXX)
  testbed_compile_as_test(${name})
  if(TESTBED_SANITIZE MATCHES "address")
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/mpi/keep_libraries.cpp)
    target_link_options(${name} PRIVATE -Wl,--export-dynamic-symbol=dlclose)
  endif()
  add_dependencies(mpi_tests ${name})
endfunction()

# testbed_mpi_test(NAME target n_ranks [ARGS ...] [TIMEOUT seconds] [LABELS ...] [FIXTURES ...]): one launch of target on
# n_ranks ranks. TIMEOUT (default 60) is mpirun's; the ranks' own (tests/mpi/rank_tests.hpp), which tells where they are, comes
# before it, ctest's after it. FIXTURES smollm2: needs the real model.
function(testbed_mpi_test name target n_ranks)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" TIMEOUT "ARGS;LABELS;FIXTURES")
  if(DEFINED arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "testbed_mpi_test(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT DEFINED arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  math(EXPR timeout "${arg_TIMEOUT} * ${TESTBED_TIMEOUT_SCALE}")
  math(EXPR job_deadline "${timeout} - 10")
  math(EXPR ctest_timeout "${timeout} + 15")
  if(n_ranks EQUAL 2)
    add_dependencies(mpi2_tests ${target})
  endif()
  add_test(NAME ${name} COMMAND ${testbed_mpirun} ${timeout} ${n_ranks} $<TARGET_FILE:${target}> ${arg_ARGS})
  set_tests_properties(
    ${name} PROPERTIES LABELS "mpi;mpi${n_ranks};${arg_LABELS}" TIMEOUT ${ctest_timeout} PROCESSORS ${n_ranks}
                       ENVIRONMENT "${testbed_test_environment};TESTBED_JOB_DEADLINE_S=${job_deadline}"
                       FIXTURES_REQUIRED "${arg_FIXTURES}")
endfunction()

# testbed_e2e_test(NAME script [ARGS ...] [TARGET program] [TIMEOUT seconds] [PROCESSORS n] [FIXTURES ...]): runs
# tests/e2e/SCRIPT (.py or .sh), which finds in its environment TESTBED_BIN (the program: TARGET, by default testbed),
# TESTBED_SOURCE_DIR, TESTBED_MPIRUN (scripts/mpirun.sh: SECONDS N PROGRAM ARGS...) and TESTBED_SMOLLM2 (the real model's path,
# there with FIXTURES smollm2).
function(testbed_e2e_test name script)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "TARGET;TIMEOUT;PROCESSORS" "ARGS;FIXTURES")
  if(NOT DEFINED arg_TARGET)
    set(arg_TARGET testbed)
  endif()
  if(NOT DEFINED arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  math(EXPR timeout "${arg_TIMEOUT} * ${TESTBED_TIMEOUT_SCALE}")
  if(NOT DEFINED arg_PROCESSORS)
    set(arg_PROCESSORS 2)
  endif()
  if(NOT TARGET ${arg_TARGET})
    message(WARNING "testbed_e2e_test(${name}): there is no target ${arg_TARGET}")
    return()
  endif()
  set(path ${PROJECT_SOURCE_DIR}/tests/e2e/${script})
  if(script MATCHES "\\.py$")
    set(interpreter python3 -B)
  else()
    set(interpreter bash)
  endif()
  add_test(NAME ${name} COMMAND ${interpreter} ${path} ${arg_ARGS} ${arg_UNPARSED_ARGUMENTS})
  set_tests_properties(
    ${name}
    PROPERTIES LABELS e2e TIMEOUT ${timeout} PROCESSORS ${arg_PROCESSORS}
               ENVIRONMENT "${testbed_test_environment};TESTBED_BIN=$<TARGET_FILE:${arg_TARGET}>"
               ENVIRONMENT_MODIFICATION "${testbed_mpi_sanitizer}"
               FIXTURES_REQUIRED "${arg_FIXTURES}")
endfunction()

# Each owner declares its tests in a .cmake file of its own in the folder.
macro(testbed_include_test_lists)
  file(GLOB test_lists CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cmake)
  foreach(list IN LISTS test_lists)
    include(${list})
  endforeach()
endmacro()
