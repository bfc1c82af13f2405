testbed_mpi_executable(comm_test testbed_comm_mpi)
foreach(n 1 2 3 4 8)
  testbed_mpi_test(comm_np${n} comm_test ${n} TIMEOUT 120)
endforeach()
testbed_mpi_test(comm_deadline comm_test 3 ARGS deadline)
testbed_mpi_test(comm_whereabouts comm_test 3 ARGS whereabouts)
testbed_mpi_test(comm_large_message comm_test 2 ARGS large TIMEOUT 240)

# One rank is left behind or fails; the job must end at once, with the code that rank gave.
foreach(mode abort deadline_abort)
  add_test(NAME comm_${mode} COMMAND bash -c "'${testbed_mpirun}' 30 4 '$<TARGET_FILE:comm_test>' ${mode}; [ $? -eq 7 ]")
  set_tests_properties(comm_${mode} PROPERTIES LABELS "mpi;mpi4" TIMEOUT 45 PROCESSORS 4
                                               ENVIRONMENT_MODIFICATION "${testbed_mpi_sanitizer}")
endforeach()
