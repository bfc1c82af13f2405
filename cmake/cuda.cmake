# The CUDA device: TESTBED_CUDA=AUTO builds it where nvcc 13, cuBLASLt and NCCL are found, ON requires them, OFF leaves it out.
# Sets TESTBED_HAS_CUDA, and TESTBED_HAS_CUDA_HEADERS where the emulation of the tests can be compiled.
set(TESTBED_CUDA AUTO CACHE STRING "Build the CUDA device: AUTO, ON, OFF")
set_property(CACHE TESTBED_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TESTBED_CUDA_ARCHITECTURES 80-real 90-real 100-real CACHE STRING "What kernels are compiled for")
set(TESTBED_HAS_CUDA FALSE)
set(TESTBED_HAS_CUDA_HEADERS FALSE)

if(NOT TESTBED_CUDA STREQUAL "OFF")
  find_program(TESTBED_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  if(TESTBED_NVCC)
    get_filename_component(testbed_cuda_root ${TESTBED_NVCC} REALPATH)
    get_filename_component(testbed_cuda_root ${testbed_cuda_root} DIRECTORY)
    get_filename_component(testbed_cuda_root ${testbed_cuda_root} DIRECTORY)
    set(CUDAToolkit_ROOT ${testbed_cuda_root})
    find_package(CUDAToolkit 13.0)
    # In NCCL_HOME, beside nvcc, or as pip's nvidia-nccl-cu13 has it: without the link libnccl.so.
    execute_process(
      COMMAND python3 -c "import site, sysconfig; print(*dict.fromkeys([sysconfig.get_path('purelib'), *site.getsitepackages(), \
site.getusersitepackages()]), sep=';', end='')"
      OUTPUT_VARIABLE testbed_site_packages ERROR_QUIET)
    list(TRANSFORM testbed_site_packages APPEND /nvidia/nccl)
    set(testbed_nccl_roots $ENV{NCCL_HOME} ${testbed_cuda_root} ${testbed_site_packages})
    find_path(TESTBED_NCCL_INCLUDE nccl.h HINTS ${testbed_nccl_roots} PATH_SUFFIXES include)
    find_library(TESTBED_NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${testbed_nccl_roots} PATH_SUFFIXES lib lib64)
  endif()
  if(TESTBED_NVCC AND CUDAToolkit_FOUND AND TESTBED_NCCL_INCLUDE)
    set(TESTBED_HAS_CUDA_HEADERS TRUE)
    # Sanitizers compile the host's side, which the emulation runs.
    if(TESTBED_NCCL_LIBRARY AND TARGET CUDA::cublasLt AND NOT TESTBED_SANITIZE)
      set(TESTBED_HAS_CUDA TRUE)
    endif()
  endif()
  if(TESTBED_CUDA STREQUAL "ON" AND NOT TESTBED_HAS_CUDA)
    message(FATAL_ERROR "TESTBED_CUDA=ON needs nvcc 13, cuBLASLt and NCCL (found: nvcc ${TESTBED_NVCC}, "
                        "NCCL ${TESTBED_NCCL_LIBRARY})")
  endif()
endif()

if(TESTBED_HAS_CUDA)
  set(CMAKE_CUDA_COMPILER ${TESTBED_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES ${TESTBED_CUDA_ARCHITECTURES})
  enable_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 knows nvcc up to C++17
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  add_library(testbed_nccl INTERFACE)
  target_include_directories(testbed_nccl SYSTEM INTERFACE ${TESTBED_NCCL_INCLUDE})
  target_link_libraries(testbed_nccl INTERFACE ${TESTBED_NCCL_LIBRARY})
endif()

# testbed_cuda_library(NAME sources...): a static library with .cu files. Warnings are errors, and a kernel that spills
# registers fails the build.
function(testbed_cuda_library name)
  testbed_library(${name} ${ARGN})
  target_compile_options(
    ${name}
    PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -lineinfo -Werror=all-warnings -Xptxas=-warn-spills,-Werror
            -Xcompiler=-Wall,-Wextra,-Werror,-Wno-missing-field-initializers>)
  set_target_properties(${name} PROPERTIES CUDA_RUNTIME_LIBRARY Shared)
endfunction()
