// All-reduce over peer memory on emulated GPUs, one for each rank. peer_all_reduce_test [MODE]:
// without a mode everything that ends well; missing leaves a rank behind on purpose.

#include <unistd.h>

#include <cstdio>

#include "kernels/cuda/rows.hpp"
#include "parallel/comm/gather_values.hpp"
#include "tests/cuda_emulation/emulation.hpp"
#include "tests/mpi/host_twin.hpp"
#include "tests/mpi/peer_checks.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace testbed {
namespace {

constexpr CommAlgorithm algorithms[] = {CommAlgorithm::one_shot, CommAlgorithm::two_shot};

// Half of the SMs are left to the kernels that peers may wait for; of a slice with one there is
// none to leave.
static_assert(cuda::peer_blocks(132) == cuda::max_peer_blocks && cuda::peer_blocks(108) == 54 &&
              cuda::peer_blocks(14) == 7 && cuda::peer_blocks(1) == 1);

// Ends that fill no piece of eight, less than a piece, less pieces than ranks, addresses that are
// not aligned, and what fills every block.
void sums(Ranks& ranks, PeerAllReduce& peers) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const int64_t n : {1, 7, 8, 17, 1003, 4096, 50021}) {
      for (const int64_t offset : {0, 1}) {
        for (const CommAlgorithm algorithm : algorithms) {
          const std::string what = std::string(algorithm_name(algorithm)) + " of " +
                                   std::to_string(n) + " " + std::string(dtype_name(dtype)) +
                                   " from element " + std::to_string(offset);
          const Tensor host(dtype, {n});
          fill(host, ranks.host->rank(), random_value);
          const Tensor device = cuda::device_tensor(dtype, {n + 1 + offset});
          const TensorView x = device.view().rows(offset, n);
          const TensorView behind = device.view().rows(offset + n, 1);
          const Tensor guard(dtype, {1});
          fill(guard, 1000, random_value);
          copy(ranks.queue, guard, behind);
          copy(ranks.queue, host, x);
          peers.all_reduce(x, algorithm);
          require_sum(on_host(ranks.queue, x), ranks.host->size(), random_value, what);
          require_equal(
              bits_at(on_host(ranks.queue, behind), 0), bits_at(guard, 0), what + ": end");
        }
      }
    }
  }
}

// The second run is captured; from the third on the graph is replayed.
void replayed(Ranks& ranks, PeerAllReduce& peers) {
  constexpr int n_rounds = 5;
  constexpr int64_t n = 3001;
  const Tensor x = cuda::device_tensor(DType::BF16, {n});
  const Tensor y = cuda::device_tensor(DType::F32, {n});
  for (int round = 0; round < n_rounds; ++round) {
    for (const TensorView device : {x.view(), y.view()}) {
      const Tensor host(device.dtype(), {n});
      fill(host, ranks.host->rank(), value_of_round(round));
      copy(ranks.queue, host, device);
    }
    ranks.queue.section(1, [&] {
      peers.all_reduce(x, CommAlgorithm::one_shot);
      peers.all_reduce(y, CommAlgorithm::two_shot);
    });
    for (const TensorView device : {x.view(), y.view()}) {
      require_sum(on_host(ranks.queue, device),
                  ranks.host->size(),
                  value_of_round(round),
                  "round " + std::to_string(round) + " of a replayed section");
    }
  }
  const cuda::GraphStats& stats = ranks.queue.stats();
  require_equal<int64_t>(stats.captures, 1, "captures");
  require_equal<int64_t>(stats.recaptures, 0, "recaptures");
  require_equal<int64_t>(stats.replays, n_rounds - 2, "replays");
  ranks.queue.forget_graphs();
}

// Many calls in a row, of sizes and algorithms that change, each rank late at other calls: a half
// of a region that is written too early gives wrong sums.
void many_calls(Ranks& ranks, PeerAllReduce& peers) {
  constexpr int n_calls = 120;
  constexpr int64_t most = 9000;
  const Tensor all = cuda::device_tensor(DType::F32, {n_calls, most});
  const auto size_of = [](int call) {
    return 1 + static_cast<int64_t>(mix64(static_cast<uint64_t>(call)) % most);
  };
  for (int call = 0; call < n_calls; ++call) {
    const Tensor host(DType::F32, {most});
    fill(host, ranks.host->rank(), value_of_round(call));
    copy(ranks.queue, host, all.view().rows(call, 1));
  }
  for (int call = 0; call < n_calls; ++call) {
    const TensorView row = all.view().rows(call, 1).reshaped({most});
    peers.all_reduce(row.rows(0, size_of(call)), algorithms[call / 3 % 2]);
    if (call % 7 == ranks.host->rank()) {
      if (call % 2 == 0) ranks.queue.synchronize();
      usleep(5000);
    }
  }
  for (int call = 0; call < n_calls; ++call) {
    const TensorView row = all.view().rows(call, 1).reshaped({most});
    require_sum(on_host(ranks.queue, row.rows(0, size_of(call))),
                ranks.host->size(),
                value_of_round(call),
                "call " + std::to_string(call) + " of many");
  }
}

// More rows than one, rows of one warp, and of several pieces for a thread.
void fused_equals_unfused(Ranks& ranks, PeerAllReduce& peers, DType dtype, Shape shape) {
  const std::string what = "fused norm of " + std::to_string(shape[0]) + " x " +
                           std::to_string(shape[1]) + " " + std::string(dtype_name(dtype));
  constexpr float eps = 1e-5F;
  const Tensor host_partial(dtype, shape);
  const Tensor host_residual(dtype, shape);
  const Tensor host_weight(DType::F32, {shape[1]});
  fill(host_partial, ranks.host->rank(), random_value);
  fill(host_residual, 50, random_value);
  fill(host_weight, 51, random_value);
  const Tensor weight = on_device(ranks.queue, host_weight);
  const Tensor partial = on_device(ranks.queue, host_partial);
  const Tensor residual = on_device(ranks.queue, host_residual);
  const Tensor out = cuda::device_tensor(dtype, shape);
  require(peers.takes_add_norm(partial), what + ": taken");
  peers.all_reduce_add_norm(partial, residual, weight, eps, out);
  require_same_bits(on_host(ranks.queue, partial), host_partial, what + ": partial");

  const Tensor residual_apart = on_device(ranks.queue, host_residual);
  const Tensor out_apart = cuda::device_tensor(dtype, shape);
  peers.all_reduce(partial, CommAlgorithm::one_shot);
  cuda::add_rms_norm(ranks.queue, residual_apart, partial, weight, eps, out_apart);
  require_same_bits(
      on_host(ranks.queue, residual), on_host(ranks.queue, residual_apart), what + ": residual");
  require_same_bits(on_host(ranks.queue, out), on_host(ranks.queue, out_apart), what + ": out");
}

void fused(Ranks& ranks) {
  ranks.options.sizes = PeerSizes{.one_shot_bytes = int64_t{128} << 10};
  const auto peers = ranks.make();
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const Shape& shape : {Shape{1, 64}, Shape{3, 576}, Shape{2, 4096}, Shape{70, 256}}) {
      fused_equals_unfused(ranks, *peers, dtype, shape);
    }
  }
  fused_equals_unfused(ranks, *peers, DType::BF16, {1, 16384});
  const auto takes = [&](int64_t m, int64_t d) {
    return peers->takes_add_norm(TensorView(nullptr, DType::BF16, {m, d}));
  };
  require(!takes(2, 100), "rows that are no whole pieces are not fused");
  require(!takes(2, 20000), "rows of more than a block's registers are not fused");
  require_equal(peers->takes_add_norm(TensorView(nullptr, DType::F32, {1, 16384})),
                ranks.host->size() == 2,
                "all ranks' parts of a row, 64 KiB each, have to fit a block's shared memory");
  require(takes(16, 4096) && !takes(17, 4096), "fused up to one-shot's limit");
  ranks.options.sizes.reset();
}

// Between them the ranks send what the algorithms are said to.
void wire_bytes_of_all(Ranks& ranks, PeerAllReduce& peers) {
  const int64_t n = ranks.host->size();
  for (const int64_t elements : {int64_t{5}, 8 * n, int64_t{1003}}) {
    for (const CommAlgorithm algorithm : algorithms) {
      const Tensor sent(DType::F32, {1});
      const int64_t n_bytes = 2 * elements;
      sent.as<float>()[0] = static_cast<float>(peers.wire_bytes(algorithm, n_bytes, 2));
      ranks.host->all_reduce(sent);
      const int64_t expected = (n - 1) * n_bytes * (algorithm == CommAlgorithm::one_shot ? n : 2);
      require_equal(static_cast<int64_t>(sent.as<float>()[0]), expected, "wire bytes");
    }
  }
}

void tuned(Ranks& ranks, PeerAllReduce& peers) {
  require(!peers.algorithm_for(8), "nothing is taken before it is measured");
  // Twice the work of a two-shot, so never the best.
  const auto slow = [&](TensorView x) {
    for (int i = 0; i < 4; ++i) peers.all_reduce(x, CommAlgorithm::two_shot);
  };
  peers.tune(slow, {.last_bytes = 8 << 10, .calls = 2, .repeats = 3, .budget_s = 600.0});
  require_equal<size_t>(peers.times().size(), 4, "sizes measured: 1, 2, 4, 8 KiB");
  for (const AllReduceTimes& t : peers.times()) {
    require(t.one_shot_us > 0 && t.two_shot_us > 0 && t.nccl_us > 0, "times are measured");
  }
  for (int64_t n_bytes = 1 << 10; n_bytes <= 16 << 10; n_bytes *= 2) {
    const auto mine = peers.algorithm_for(n_bytes);
    for (const auto theirs : gather_values(*ranks.host, mine ? static_cast<int>(*mine) : -1)) {
      require_equal(theirs, mine ? static_cast<int>(*mine) : -1, "algorithm on all ranks");
    }
  }
  require(peers.description().ends_with("(measured)"), peers.description());
}

void best_of_times() {
  const std::vector<AllReduceTimes> times = {{1 << 10, 5, 9, 12},
                                             {2 << 10, 6, 9, 12},
                                             {4 << 10, 9.5, 9, 12},
                                             {8 << 10, 10, 12, 13},
                                             {16 << 10, 30, 14, 16},
                                             {32 << 10, 60, 25, 20}};
  // 4 KiB alone would be a two-shot's.
  const PeerSizes best = best_sizes(times);
  require_equal<int64_t>(best.one_shot_bytes, 8 << 10, "one-shot");
  require_equal<int64_t>(best.two_shot_bytes, 16 << 10, "two-shot");
  require_equal<std::string>(
      sizes_text(best), "one-shot to 8 KiB, two-shot to 16 KiB, NCCL above", "text");
  const std::vector<AllReduceTimes> slow = {{1 << 10, 5, 5, 2}};
  require_equal<std::string>(sizes_text(best_sizes(slow)), "NCCL", "NCCL always");
}

void require_why_not(Ranks& ranks, Communicator& host, const std::string& expected) {
  const PeerAllReduce::Made made = PeerAllReduce::make(ranks.queue, host, ranks.options);
  require(made.peers == nullptr, "made, but expected: " + expected);
  require(made.why_not.starts_with(expected), made.why_not + ", expected " + expected);
}

void reasons(Ranks& ranks, MpiWorld& world) {
  const std::string last = "rank " + std::to_string(world.size() - 1) + ": ";
  const bool is_last = world.rank() == world.size() - 1;
  HostTwin apart(*ranks.host, HostTwin::Nodes::one_each, 0.0F);
  require_why_not(ranks, apart, "the ranks are on " + std::to_string(world.size()) + " hosts");

  HostTwin wrong(*ranks.host, HostTwin::Nodes::as_they_are, is_last ? 1.0F : 0.0F);
  require_why_not(ranks, wrong, last + "one-shot all-reduce of 2 f32: element 0 differs");

  for (const char* call : {"cudaMalloc", "cudaIpcGetMemHandle", "cudaIpcOpenMemHandle"}) {
    if (is_last) emulation::set_faults(std::string(call) + ":1");
    require_why_not(ranks, *ranks.host, last + call);
    emulation::set_faults("");
  }
  cuda::check(cudaSetDevice(0), "cudaSetDevice");
  require_why_not(ranks, *ranks.host, "ranks 0 and 1 share GPU 0000:");
  cuda::check(cudaSetDevice(world.local_rank()), "cudaSetDevice");

  ranks.options.hosts.resize(1);
  const auto alone = world.make_group({world.rank()}, Axis::tp);
  require_why_not(ranks, *alone, "a group of one rank");
  ranks.options.hosts = world.hosts();
}

void everything(MpiWorld& world) {
  Ranks ranks(world);
  best_of_times();
  const emulation::Live before = emulation::live();
  reasons(ranks, world);
  {
    const auto peers = ranks.make();
    sums(ranks, *peers);
    replayed(ranks, *peers);
    many_calls(ranks, *peers);
    wire_bytes_of_all(ranks, *peers);
    tuned(ranks, *peers);
  }
  fused(ranks);
  require(emulation::live() == before, "everything made is freed");
  ranks.host->barrier();
}

// The last rank does not call: the others' kernels give up, and every wait says so. At the
// deadline: SMs' clocks (the emulation's are slow) would be there after minutes.
void missing(MpiWorld& world) {
  Ranks ranks(world);
  ranks.options.deadline_s = 1.0;
  const auto peers = ranks.make();
  const Tensor x = cuda::device_tensor(DType::F32, {10000});
  const bool is_last = world.rank() == world.size() - 1;
  for (int call = 0; call < 2 && !is_last; ++call) {
    require_equal<std::string>(
        error_of([&] {
          peers->all_reduce(x, algorithms[call]);
          ranks.queue.synchronize();
        }),
        "all_reduce on tp group " + group_text(world) + ": " + late_rank(world),
        "a peer that does not come");
  }
  ranks.host->barrier();
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  testbed::MpiWorld world;
  return testbed::on_every_rank(world, [&] {
    testbed::cuda::check(cudaSetDevice(world.local_rank()), "cudaSetDevice");
    argc > 1 && std::string(argv[1]) == "missing" ? testbed::missing(world)
                                                  : testbed::everything(world);
    return 0;
  });
}
