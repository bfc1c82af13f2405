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
endif()

# testbed_library(NAME sources... ) : a static library of ours.
function(testbed_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC testbed_options)
endfunction()

# Rebuilds are cheap with ccache; a launcher given by the caller stays.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(TESTBED_CCACHE ccache)
  if(TESTBED_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${TESTBED_CCACHE})
  endif()
endif()
