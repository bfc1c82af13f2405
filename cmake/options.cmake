# What every target of ours is compiled with: linked PRIVATE as testbed_options, so no global flags.
add_library(testbed_options INTERFACE)
target_include_directories(testbed_options INTERFACE ${PROJECT_SOURCE_DIR})
set(testbed_warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror
                     -Wno-missing-field-initializers) # designated initializers name what differs from the defaults
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND testbed_warnings -Wno-restrict) # g++ 12 warns of "x" + string in its own headers (its bug 105651)
endif()
target_compile_options(testbed_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${testbed_warnings}>") # nvcc has its own: cmake/cuda.cmake

set(TESTBED_SANITIZE "" CACHE STRING "Sanitizers for every target, as for -fsanitize= (presets asan, tsan)")
if(TESTBED_SANITIZE)
  target_compile_options(testbed_options INTERFACE -fsanitize=${TESTBED_SANITIZE} -fno-omit-frame-pointer
                                                   -fno-sanitize-recover=all)
  target_link_options(testbed_options INTERFACE -fsanitize=${TESTBED_SANITIZE})
  if(TESTBED_SANITIZE MATCHES "address" AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_definitions(testbed_options INTERFACE __SANITIZE_ADDRESS__) # as g++ says it
  endif()
endif()

# What most sources include, to be parsed once (sanitized only: with it g++ 12 warns, optimising, of what is wrong with the
# standard library's headers, which it otherwise does not). testbed_precompiled_headers(NAME headers...): what
# target_precompile_headers(... REUSE_FROM NAME) shares; its users are compiled with the same options.
set(testbed_standard_headers
    <algorithm> <array> <chrono> <cstdint> <cstring> <filesystem> <fstream> <functional> <map> <memory> <numeric> <optional>
    <set> <span> <sstream> <string> <string_view> <utility> <variant> <vector> <fmt/format.h>)
function(testbed_precompiled_headers name)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${name}.cpp CONTENT "")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PRIVATE testbed_options fmt::fmt)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()
if(TESTBED_SANITIZE)
  testbed_precompiled_headers(testbed_precompiled ${testbed_standard_headers})
  target_compile_options(testbed_precompiled PRIVATE -O0)
endif()

# testbed_library(NAME sources... ) : a static library of ours. Sanitized it is compiled quickly, but for what computes:
# kernels, the emulation of CUDA, plans. Otherwise without precompiled headers, so that a missing #include is found.
function(testbed_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC testbed_options)
  if(TESTBED_SANITIZE AND NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "/(kernels|cuda_emulation|plan)(/|$)|/parallel$")
    target_compile_options(${name} PRIVATE -O0)
    target_precompile_headers(${name} REUSE_FROM testbed_precompiled)
  endif()
endfunction()

# Rebuilds are cheap with ccache; a launcher given by the caller stays.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(TESTBED_CCACHE ccache)
  if(TESTBED_CCACHE)
    # It takes a precompiled header for what its text says.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${TESTBED_CCACHE})
  endif()
endif()
