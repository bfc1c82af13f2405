// All-reduce of f32 between ranks: ours, in both algorithms and as chosen, beside MPI_Allreduce in
// the same run.
//   mpirun -np 2 bench_all_reduce [rounds]
// Each round times one call of every candidate, in turn; a call's time is the slowest rank's.
// Results are checked first.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "kernels/base/clock.hpp"
#include "parallel/comm/mpi_world.hpp"

namespace {

using namespace testbed;  // NOLINT(google-build-using-namespace)

struct Candidate {
  std::string name;
  std::function<void(TensorView)> run;
  std::vector<double> us = {};
};

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}
double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

// Calls in one timing, so that a clock reading and the barrier do not show.
int64_t calls_for(int64_t n_bytes) {
  return std::clamp<int64_t>((int64_t{1} << 20) / n_bytes, 1, 64);
}

double time_us(const Candidate& candidate, TensorView x, int64_t n_calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  const int64_t begin_ns = now_ns();
  for (int64_t i = 0; i < n_calls; ++i) candidate.run(x);
  double mine = static_cast<double>(now_ns() - begin_ns) / 1e3 / static_cast<double>(n_calls);
  double slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

void verify(const Candidate& candidate, const MpiWorld& world, Tensor& x) {
  std::fill_n(x.as<float>(), x.n_elements(), static_cast<float>(world.rank() + 1));
  candidate.run(x);
  const auto expected = 0.5F * static_cast<float>(world.size() * (world.size() + 1));
  for (int64_t i = 0; i < x.n_elements(); ++i) CHECK(x.as<float>()[i] == expected);
  // Zeros stay zeros over any number of sums.
  std::fill_n(x.as<float>(), x.n_elements(), 0.0F);
}

void bench(MpiWorld& world, int n_rounds) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto ours = [&](const char* name, const AllReduceSizes& sizes) {
    std::shared_ptr<Communicator> group = world.make_group(ranks, Axis::tp, sizes);
    return Candidate{.name = name, .run = [group](TensorView x) { group->all_reduce(x); }};
  };
  const auto mpi = [](TensorView x) {
    MPI_Allreduce(MPI_IN_PLACE,
                  x.data(),
                  static_cast<int>(x.n_elements()),
                  MPI_FLOAT,
                  MPI_SUM,
                  MPI_COMM_WORLD);
  };
  std::vector<Candidate> candidates = {
      {.name = "MPI_Allreduce", .run = mpi},
      ours("ours", {}),
      ours("one-shot", {.one_shot_bytes = int64_t{1} << 60, .one_shot_ranks = 1 << 20}),
      ours("two-shot", {.one_shot_bytes = -1}),
      ours("32 KiB", {.one_shot_bytes = -1, .piece_bytes = int64_t{32} << 10}),
      ours("512 KiB", {.one_shot_bytes = -1, .piece_bytes = int64_t{512} << 10}),
      ours("whole", {.one_shot_bytes = -1, .piece_bytes = int64_t{1} << 40}),
  };
  if (world.rank() == 0) {
    fmt::print(
        "# {} ranks, {} usable cores, {}, medians of {} rounds in us; x = MPI / ours of a round, "
        "with quartiles\n",
        world.size(),
        world.n_usable_cores(),
        world.library(),
        n_rounds);
    for (const auto& [name, value] : world.settings()) fmt::print("# {}={}\n", name, value);
    fmt::print("{:>10}", "bytes");
    for (const Candidate& c : candidates) fmt::print(" {:>13}", c.name);
    fmt::print(" {:>6} {:>13}\n", "x", "quartiles");
  }
  for (int64_t n_bytes = 512; n_bytes <= int64_t{64} << 20; n_bytes *= 2) {
    Tensor x(DType::F32, {n_bytes / 4});
    for (Candidate& candidate : candidates) {
      candidate.us.clear();
      verify(candidate, world, x);
      time_us(candidate, x, 1);
    }
    std::vector<double> ratios;
    for (int round = 0; round < n_rounds; ++round) {
      for (Candidate& candidate : candidates)
        candidate.us.push_back(time_us(candidate, x, calls_for(n_bytes)));
      ratios.push_back(candidates[0].us.back() / candidates[1].us.back());
    }
    if (world.rank() != 0) continue;
    fmt::print("{:>10}", n_bytes);
    for (const Candidate& c : candidates) fmt::print(" {:>13.1f}", median(c.us));
    fmt::print(" {:>6.2f} {:>6.2f} {:>6.2f}\n",
               median(ratios),
               quantile(ratios, 0.25),
               quantile(ratios, 0.75));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  testbed::MpiWorld world;
  bench(world, argc > 1 ? std::atoi(argv[1]) : 31);
  return 0;
}
