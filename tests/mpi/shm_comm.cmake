testbed_mpi_executable(shm_comm_test testbed_comm_mpi)
foreach(n 2 3 4 8)
  testbed_mpi_test(shm_comm_np${n} shm_comm_test ${n} TIMEOUT 120)
endforeach()
testbed_mpi_test(shm_comm_deadline shm_comm_test 3 ARGS deadline)

# A rank is killed while the others wait for it: the job ends, and leaves no shared memory behind.
add_test(
  NAME shm_comm_killed
  COMMAND
    bash -c
    "before=$(ls /dev/shm | grep -c testbed); '${testbed_mpirun}' 30 3 '$<TARGET_FILE:shm_comm_test>' killed; code=$?; [ $code -ne 0 ] && [ $code -ne 124 ] && [ $(ls /dev/shm | grep -c testbed) -eq $before ]"
)
set_tests_properties(shm_comm_killed PROPERTIES LABELS "mpi;mpi4" TIMEOUT 45 PROCESSORS 3
                                                ENVIRONMENT_MODIFICATION "${testbed_mpi_sanitizer}")
