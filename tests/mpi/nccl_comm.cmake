if(TARGET testbed_comm_nccl_emulated AND TESTBED_SANITIZE)
  testbed_mpi_executable(nccl_comm_test testbed_comm_nccl_emulated)
  testbed_mpi_test(nccl_comm_np2 nccl_comm_test 2 TIMEOUT 120)
elseif(TARGET testbed_comm_nccl_emulated)
  foreach(test nccl_comm nccl_messages)
    testbed_mpi_executable(${test}_test testbed_comm_nccl_emulated)
    foreach(n 1 2 3 4)
      testbed_mpi_test(${test}_np${n} ${test}_test ${n} TIMEOUT 120)
    endforeach()
  endforeach()

  testbed_mpi_executable(nccl_faults_test testbed_comm_nccl_emulated)
  # Something fails on one rank, or it is stuck; the others say so and end the job, with the code for a right message.
  foreach(
    mode
    ncclGetUniqueId
    ncclCommInitRankConfig
    ncclCommSplit
    ncclAllReduce
    ncclAllGather
    ncclReduceScatter
    ncclGroupStart
    ncclSend
    ncclRecv
    ncclGroupEnd
    asynchronous_fault
    device_hangs
    ranks_disagree
    rank_stops
    rank_never_comes
    rank_stops_in_init)
    add_test(NAME nccl_faults_${mode} COMMAND bash -c "'${testbed_mpirun}' 40 3 '$<TARGET_FILE:nccl_faults_test>' ${mode}; [ $? -eq 7 ]")
    set_tests_properties(nccl_faults_${mode} PROPERTIES LABELS "mpi;mpi3" TIMEOUT 55 PROCESSORS 3
                                                      ENVIRONMENT_MODIFICATION "${testbed_mpi_sanitizer}")
  endforeach()
endif()
