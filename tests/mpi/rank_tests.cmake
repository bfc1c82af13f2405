testbed_mpi_executable(rank_tests_test testbed_comm_mpi)
testbed_mpi_test(rank_tests_pass rank_tests_test 2)
math(EXPR limit "20 * ${TESTBED_TIMEOUT_SCALE}")
math(EXPR ctest_limit "${limit} + 15")
# DEED:what is said of it
foreach(case "fails:rank 1: .*rank_tests_test.cpp" "throws:rank 1: as it was told to" "hangs:rank [01]: the test is not over after 2 s")
  string(REGEX MATCH "^[^:]*" deed "${case}")
  string(REGEX REPLACE "^[a-z]*:" "" said "${case}")
  add_test(NAME rank_tests_${deed}
           COMMAND bash -c "! said=$('${testbed_mpirun}' ${limit} 2 '$<TARGET_FILE:rank_tests_test>' ${deed} 2>&1) && grep '${said}' <<<\"$said\" || { echo \"$said\"; exit 1; }")
  set_tests_properties(rank_tests_${deed} PROPERTIES LABELS "mpi;mpi2" TIMEOUT ${ctest_limit} PROCESSORS 2 ENVIRONMENT TESTBED_JOB_DEADLINE_S=2
                                                     ENVIRONMENT_MODIFICATION "${testbed_mpi_sanitizer}")
endforeach()
