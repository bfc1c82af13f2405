// What rank 1 of a job does is heard of, though rank 0 waits for it in a call of MPI's: an
// expectation that does not hold, an exception, a hang. The argument says which.
#include "tests/mpi/rank_tests.hpp"

#include <mpi.h>
#include <unistd.h>

#include <stdexcept>

namespace testbed {
namespace {

MpiWorld* world = nullptr;
std::string deed;

TEST(RankTests, rank_1_does_something) {
  if (world->rank() == 1) {
    EXPECT_NE(deed, "fails");
    if (deed == "throws") throw std::runtime_error("as it was told to");
    if (deed == "hangs") {
      while (true) pause();
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  if (argc > 1) testbed::deed = argv[1];
  return testbed::run_all_tests(argc, argv, testbed::world);
}
