// What the ranks of a job do together in a test's main(): a rank on which something fails, or that
// hangs, is heard of, and the others do not wait for it.
#pragma once

#include <errno.h>  // program_invocation_short_name
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>

#include "parallel/comm/mpi_world.hpp"
#include "parallel/comm/watchdog.hpp"

namespace testbed {

// Before mpirun's own limit, which would tell nothing (cmake/testing.cmake).
inline double job_deadline_s() {
  const char* text = std::getenv("TESTBED_JOB_DEADLINE_S");
  return text == nullptr ? 3600.0 : std::atof(text);
}

// What takes the cores: a test that is not over in time may have been kept from them.
inline std::string busiest_processes() {
  std::string text;
  FILE* pipe =
      popen("ps -eo pid,cls,ni,pcpu,etimes,args --sort=-pcpu | cut -c1-160 | head -12", "r");
  if (pipe == nullptr) return text;
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) text += line;
  pclose(pipe);
  return text;
}

// The exit code of work(). An exception ends the job, and so does the deadline, after saying what
// each rank is at.
inline int on_every_rank(MpiWorld& world, const std::function<int()>& work) {
  const std::string name = fmt::format("{}: rank {}", program_invocation_short_name, world.rank());
  const auto whereabouts = [&world] { return world.board().report() + busiest_processes(); };
  // On starved cores its last words may take seconds; mpirun's limit is 10 s later.
  Watchdog watchdog({.name = name, .whereabouts = whereabouts, .last_words_s = 8.0});
  const Watchdog::Watch watch(watchdog, "the test", job_deadline_s());
  try {
    return work();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    world.abort(1);
  }
}

// The failures of a rank that prints nothing else.
class FailurePrinter final : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    fmt::print(stderr,
               "rank {}: {}:{}: {}\n",
               rank_,
               result.file_name() == nullptr ? "" : result.file_name(),
               result.line_number(),
               result.summary());
  }

 private:
  int rank_;
};

// GoogleTest's tests, the same on every rank; rank 0 prints how they went. A rank on which one
// fails returns non-zero.
inline int run_all_tests(MpiWorld& world) {
  // GoogleTest would go on to the next test, which the others have not come to.
  ::testing::GTEST_FLAG(catch_exceptions) = false;
  if (world.rank() != 0) {
    ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(world.rank()));
  }
  return on_every_rank(world, [] { return RUN_ALL_TESTS(); });
}

// The main() of tests that need nothing but the world.
inline int run_all_tests(int argc, char** argv, MpiWorld*& world) {
  MpiWorld the_world;
  world = &the_world;
  ::testing::InitGoogleTest(&argc, argv);
  return run_all_tests(the_world);
}

}  // namespace testbed
