// All-reduce of f32 between ranks: ours, in its ways and as chosen, beside MPI_Allreduce in the
// same run. MPI is timed on the tensors that our ranks share and on private ones: the faster of the
// two by median is each size's peer. MPI's single-copy setting is the environment's, so that
// comparing both takes two launches (benchmarks/all_reduce.py makes one table of them).
//   mpirun -np 2 bench_all_reduce [--rounds 31] [--most-bytes 67108864] [--json FILE]
//   mpirun -np 4 bench_all_reduce --steps [--rounds 31] [--json FILE]
// Each round times every candidate in turn, after an untimed call of its own; a time is the slowest
// rank's. Results are checked first.
// --steps: what an all-reduce of 8 KiB after every 500 us of work adds to the work alone.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "kernels/base/clock.hpp"
#include "parallel/comm/mpi_world.hpp"

namespace {

using namespace testbed;  // NOLINT(google-build-using-namespace)
using Json = nlohmann::ordered_json;

struct Options {
  int rounds = 31;
  int64_t most_bytes = int64_t{64} << 20;
  bool steps = false;
  std::string json;
};

struct Candidate {
  std::string name;
  std::function<void(TensorView)> run;
  bool in_place = true;  // on tensors that the ranks share
  std::vector<double> us = {};
};

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}
double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

std::vector<double> ratios(const Candidate& a, const Candidate& b) {
  std::vector<double> each(a.us.size());
  for (size_t i = 0; i < each.size(); ++i) each[i] = a.us[i] / b.us[i];
  return each;
}

double slowest(double mine) {
  double most = 0;
  MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return most;
}

std::vector<int> everyone(const MpiWorld& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Candidate mpi_all_reduce(const char* name, bool in_place) {
  return {.name = name,
          .run =
              [](TensorView x) {
                MPI_Allreduce(MPI_IN_PLACE,
                              x.data(),
                              static_cast<int>(x.n_elements()),
                              MPI_FLOAT,
                              MPI_SUM,
                              MPI_COMM_WORLD);
              },
          .in_place = in_place};
}

// As a run has it: its changeover measured.
Candidate ours(MpiWorld& world) {
  std::shared_ptr<Communicator> group = world.make_group(everyone(world), Axis::tp);
  const std::string told = group->tune();
  if (world.rank() == 0)
    fmt::print("# ours {}; within the host: {}\n", told, world.exchange_within_host());
  return {.name = "ours", .run = [group](TensorView x) { group->all_reduce(x); }};
}

std::string single_copy() {
  const char* const set = std::getenv("OMPI_MCA_btl_vader_single_copy_mechanism");
  return set == nullptr ? "default" : set;
}

// What Open MPI does while it waits, wherever that was set.
std::string yields_when_idle() {
  int provided = 0;
  int index = 0;
  int count = 0;
  int yields = 0;  // whose first byte alone is written where it is a bool
  bool is_known = false;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  CHECK(MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) == MPI_SUCCESS);
  if (MPI_T_cvar_get_index("mpi_yield_when_idle", &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    is_known = count == 1 && MPI_T_cvar_read(handle, &yields) == MPI_SUCCESS;
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return !is_known ? "unknown" : yields != 0 ? "1" : "0";
}

// The cores of each rank, "0" or "0,1"; on rank 0.
std::vector<std::string> cores_of_ranks(const MpiWorld& world) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CHECK(sched_getaffinity(0, sizeof mask, &mask) == 0);
  std::string cores;
  for (size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores += (cores.empty() ? "" : ",") + std::to_string(core);
  }
  using Text = std::array<char, 1024>;
  constexpr auto length = static_cast<int>(sizeof(Text));
  Text mine{};
  cores.copy(mine.data(), mine.size() - 1);
  std::vector<Text> all(static_cast<size_t>(world.size()));
  MPI_Gather(mine.data(), length, MPI_CHAR, all.data(), length, MPI_CHAR, 0, MPI_COMM_WORLD);
  std::vector<std::string> found;
  found.reserve(all.size());
  for (const Text& text : all) found.emplace_back(text.data());
  return found;
}

// Calls in one timing, so that a clock reading and the barrier do not show.
int64_t calls_for(int64_t n_bytes) {
  return std::clamp<int64_t>((int64_t{1} << 20) / n_bytes, 1, 64);
}

// After an untimed call, so that each finds in the caches what it left there itself: copies by the
// kernel leave nothing of large tensors, and whoever came next would pay for it.
double time_us(const Candidate& candidate, TensorView x, int64_t n_calls) {
  candidate.run(x);
  MPI_Barrier(MPI_COMM_WORLD);
  const int64_t begin_ns = now_ns();
  for (int64_t i = 0; i < n_calls; ++i) candidate.run(x);
  return slowest(static_cast<double>(now_ns() - begin_ns) / 1e3 / static_cast<double>(n_calls));
}

void verify(const Candidate& candidate, const MpiWorld& world, TensorView x) {
  std::fill_n(x.as<float>(), x.n_elements(), static_cast<float>(world.rank() + 1));
  candidate.run(x);
  const auto expected = 0.5F * static_cast<float>(world.size() * (world.size() + 1));
  for (int64_t i = 0; i < x.n_elements(); ++i) CHECK(x.as<float>()[i] == expected);
  // Zeros stay zeros over any number of sums.
  std::fill_n(x.as<float>(), x.n_elements(), 0.0F);
}

void print_header(const MpiWorld& world, const Options& options, const Json& setting) {
  fmt::print(
      "# {} ranks on cores {} of {} usable, {}, single copy: {}, mpi_yield_when_idle: {}, medians "
      "of {} rounds\n",
      world.size(),
      fmt::join(setting["binding"].get<std::vector<std::string>>(), " | "),
      world.n_usable_cores(),
      world.library(),
      single_copy(),
      setting["mpi_yield_when_idle"].get<std::string>(),
      options.rounds);
}

Json bench_sizes(MpiWorld& world, const Options& options) {
  const auto forced = [&](const char* name, const AllReduceSizes& sizes, bool in_place) {
    std::shared_ptr<Communicator> group = world.make_group(everyone(world), Axis::tp, sizes);
    return Candidate{
        .name = name, .run = [group](TensorView x) { group->all_reduce(x); }, .in_place = in_place};
  };
  std::vector<Candidate> candidates = {
      mpi_all_reduce("MPI, shared", true), mpi_all_reduce("MPI, private", false), ours(world)};
  candidates.push_back(forced("one-shot", {.one_shot_bytes = int64_t{1} << 60}, false));
  candidates.push_back(forced("two-shot", {.one_shot_bytes = -1}, false));
  candidates.push_back(forced("in place", {.one_shot_bytes = -1}, true));
  world.set_shared_memory({.enabled = false});
  candidates.push_back(forced("messages", {}, false));
  if (world.rank() == 0) {
    fmt::print("{:>10}", "bytes");
    for (const Candidate& c : candidates) fmt::print(" {:>13}", c.name);
    fmt::print(" {:>8} {:>13}\n", "MPI/ours", "quartiles");
  }
  Json rows = Json::array();
  for (int64_t n_bytes = 512; n_bytes <= options.most_bytes; n_bytes *= 2) {
    const Tensor own(DType::F32, {n_bytes / 4});
    const Tensor shared = world.allocate(DType::F32, {n_bytes / 4});
    const auto tensor_of = [&](const Candidate& c) {
      return c.in_place ? shared.view() : own.view();
    };
    for (Candidate& c : candidates) {
      c.us.clear();
      verify(c, world, tensor_of(c));
    }
    for (int round = 0; round < options.rounds; ++round) {
      for (Candidate& c : candidates) c.us.push_back(time_us(c, tensor_of(c), calls_for(n_bytes)));
    }
    const bool shared_is_faster = median(candidates[0].us) <= median(candidates[1].us);
    const Candidate& mpi = candidates[shared_is_faster ? 0 : 1];
    const std::vector<double> each = ratios(mpi, candidates[2]);
    rows.push_back({{"bytes", n_bytes},
                    {"mpi_us", median(mpi.us)},
                    {"mpi_memory", shared_is_faster ? "shared" : "private"},
                    {"mpi_shared_us", median(candidates[0].us)},
                    {"mpi_private_us", median(candidates[1].us)},
                    {"ours_us", median(candidates[2].us)},
                    {"ratio", median(each)},
                    {"quartiles", {quantile(each, 0.25), quantile(each, 0.75)}}});
    if (world.rank() != 0) continue;
    fmt::print("{:>10}", n_bytes);
    for (const Candidate& c : candidates) fmt::print(" {:>13.1f}", median(c.us));
    fmt::print(
        " {:>8.2f} {:>6.2f} {:>6.2f}\n", median(each), quantile(each, 0.25), quantile(each, 0.75));
    std::fflush(stdout);
  }
  return {{"sizes", std::move(rows)}};
}

double thread_cpu_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

// Arithmetic of a fixed length.
float work(int64_t n) {
  volatile float x = 1.0F;
  for (int64_t i = 0; i < n; ++i) x = x * 0.999F + 0.5F;
  return x;
}

int64_t work_of(double us) {
  constexpr int64_t trial = 1'000'000;
  work(trial);
  const double begin_us = thread_cpu_us();
  work(trial);
  return std::max<int64_t>(1, static_cast<int64_t>(us / (thread_cpu_us() - begin_us) * trial));
}

// Overhead: wall of steps with the all-reduce over wall of the same work alone, less 1; and against
// all ranks' processor time of the work, spread over the cores they may use.
Json bench_steps(MpiWorld& world, const Options& options) {
  constexpr double work_us = 500.0;
  constexpr int64_t n_bytes = int64_t{8} << 10;
  constexpr int n_steps = 40;
  const int64_t length = work_of(work_us);
  const Tensor x = world.allocate(DType::F32, {n_bytes / 4});
  std::vector<Candidate> candidates = {{.name = "work alone", .run = [](TensorView) {}},
                                       ours(world),
                                       mpi_all_reduce("MPI_Allreduce", true)};
  std::vector<double> to_ideal;
  for (int round = 0; round < options.rounds; ++round) {
    for (Candidate& c : candidates) {
      MPI_Barrier(MPI_COMM_WORLD);
      const int64_t begin_ns = now_ns();
      double cpu_us = 0.0;
      for (int step = 0; step < n_steps; ++step) {
        const double begin_us = thread_cpu_us();
        work(length);
        cpu_us += thread_cpu_us() - begin_us;
        c.run(x);
      }
      c.us.push_back(slowest(static_cast<double>(now_ns() - begin_ns) / 1e3 / n_steps));
      if (&c != &candidates[1]) continue;
      double all_us = 0.0;
      MPI_Allreduce(&cpu_us, &all_us, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      const int cores = std::min(world.n_usable_cores(), world.size());
      to_ideal.push_back(c.us.back() / (all_us / n_steps / cores));
    }
  }
  Json result = {{"work_us", work_us},
                 {"bytes", n_bytes},
                 {"overhead", median(ratios(candidates[1], candidates[0])) - 1.0},
                 {"mpi_overhead", median(ratios(candidates[2], candidates[0])) - 1.0},
                 {"overhead_to_cpu_time", median(to_ideal) - 1.0}};
  if (world.rank() == 0) {
    for (const Candidate& c : candidates)
      fmt::print("{:<14} {:8.1f} us a step\n", c.name, median(c.us));
    fmt::print("overhead {:.1f} %, MPI_Allreduce's {:.1f} %; ours to processor time {:.1f} %\n",
               100.0 * result["overhead"].get<double>(),
               100.0 * result["mpi_overhead"].get<double>(),
               100.0 * result["overhead_to_cpu_time"].get<double>());
  }
  return result;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string {
      CHECK(i + 1 < argc);
      return argv[++i];
    };
    if (name == "--steps") {
      options.steps = true;
    } else if (name == "--rounds") {
      options.rounds = std::stoi(value());
    } else if (name == "--most-bytes") {
      options.most_bytes = std::stoll(value());
    } else {
      CHECK(name == "--json");
      options.json = value();
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  testbed::MpiWorld world;
  const Json setting = {{"ranks", world.size()},
                        {"cores", world.n_usable_cores()},
                        {"single_copy", single_copy()},
                        {"mpi_yield_when_idle", yields_when_idle()},
                        {"binding", cores_of_ranks(world)}};
  if (world.rank() == 0) print_header(world, options, setting);
  Json result = options.steps ? bench_steps(world, options) : bench_sizes(world, options);
  if (world.rank() == 0 && !options.json.empty()) {
    result.update(setting);
    std::ofstream(options.json) << result.dump(2) << "\n";
  }
  return 0;
}
