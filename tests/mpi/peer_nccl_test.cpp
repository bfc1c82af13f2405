// NcclCommunicator with an all-reduce over peer memory beside it: measured against NCCL's, then
// taken by size, and told as what it is.
#include "parallel/comm/peer_all_reduce.hpp"
#include "tests/mpi/nccl_checks.hpp"

namespace testbed {
namespace {

std::unique_ptr<PeerAllReduce> make_peers(Fixture& f, const PeerAllReduce::Options& options) {
  PeerAllReduce::Made made = PeerAllReduce::make(f.queue, *f.host, options);
  require_equal<std::string>(made.why_not, "", "why not");
  return std::move(made.peers);
}

void check_all_reduce(Fixture& f, int64_t n_bytes, CommAlgorithm algorithm, int64_t wire_bytes) {
  const std::string what = "all_reduce of " + std::to_string(n_bytes) + " bytes";
  const Tensor x = filled(f.queue, DType::F32, {n_bytes / 4}, f.world.rank(), whole_value);
  Records records;
  f.group->set_sink(&records);
  f.group->all_reduce(x);
  f.group->set_sink(nullptr);
  const Tensor sum = download(f.queue, x);
  for (int64_t i = 0; i < sum.n_elements(); ++i) {
    require_equal(bits_at(sum, i),
                  expected_bits(DType::F32, f.world.size(), i, whole_value),
                  what + ": element " + std::to_string(i));
  }
  require_equal<size_t>(records.all.size(), 1, what + ": records");
  const CommRecord& record = records.all.front();
  require_equal(algorithm_name(record.algorithm), algorithm_name(algorithm), what);
  require_equal(record.payload_bytes, n_bytes, what + ": payload");
  if (wire_bytes > 0) require_equal(record.wire_bytes, wire_bytes, what + ": wire bytes");
}

void work(MpiWorld& world, const std::string& /*mode*/) {
  cuda::check(cudaSetDevice(world.local_rank()), "cudaSetDevice");
  Fixture f(world, 60.0, /*messages=*/false);
  PeerAllReduce::Options options{.hosts = world.hosts(), .capacity_bytes = 64 << 10};
  {
    const auto peers = make_peers(f, options);
    peers->tune([&](TensorView x) { f.group->all_reduce(x); },
                {.last_bytes = 4 << 10, .calls = 2, .repeats = 3, .budget_s = 600.0});
    require_equal<size_t>(peers->times().size(), 3, "sizes measured: 1, 2, 4 KiB");
  }
  options.sizes = PeerSizes{.one_shot_bytes = 3072, .two_shot_bytes = 12288};
  f.group->set_peers(make_peers(f, options));
  const int64_t n = world.size();
  // 12288 bytes are 384 pieces of 8 elements: as many for each of 2, 3 and 4 ranks.
  check_all_reduce(f, 3072, CommAlgorithm::one_shot, (n - 1) * 3072);
  check_all_reduce(f, 12288, CommAlgorithm::two_shot, 2 * (n - 1) * 12288 / n);
  check_all_reduce(f, 16384, CommAlgorithm::nccl, 0);
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) { return testbed::run_on_mpi(&testbed::work, argc, argv); }
