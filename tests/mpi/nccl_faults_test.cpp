// What goes wrong with NCCL, on the emulated device: nccl_faults_test MODE ends the job with exit
// code 7 if the messages are right. The name of a call of NCCL: it fails once. asynchronous_fault,
// device_hangs, ranks_disagree, rank_stops, rank_never_comes, rank_stops_in_init.
#include <cstdlib>
#include <stdexcept>

#include "tests/mpi/nccl_checks.hpp"

namespace testbed {
namespace {

// What is called, once each.
void some_of_each(Fixture& f) {
  const int size = f.world.size();
  const Tensor x = filled(f.queue, DType::F32, {size}, f.world.rank());
  const Tensor y = cuda::device_tensor(DType::F32, {size});
  f.group->all_reduce(x);
  f.group->all_gather(x.view().rows(0, 1), y);
  f.group->reduce_scatter(x, y.view().rows(0, 1));
  Pending received = f.group->recv(y, (f.world.rank() + size - 1) % size);
  f.group->send(x, (f.world.rank() + 1) % size).wait();
  received.wait();
  f.queue.synchronize();
}

[[noreturn]] void end_with(MpiWorld& world, const std::string& error, const std::string& expected) {
  require(error.find(expected) != std::string::npos,
          "\"" + error + "\" lacks \"" + expected + "\"");
  world.abort(7);
}

std::string not_answering(const MpiWorld& world) {
  return "ranks " + std::to_string(world.size() - 1) + " (" + world.host() +
         ") did not answer within 2 s";
}

// The call fails once, on the last rank (rank 0 for the identity), which says what failed where;
// the others notice within the deadline, and are told.
void fault(MpiWorld& world, const std::string& call) {
  const bool is_identity = call == "ncclGetUniqueId";
  const int victim = is_identity ? 0 : world.size() - 1;
  emulation::set_faults(call + ":1@" + std::to_string(victim));
  const std::string error = error_of([&] {
    Fixture f(world, 1.0);
    some_of_each(f);
  });
  std::string expected = call + " on cp group " + group_text(world);
  if (is_identity) expected = call;
  if (call == "ncclCommInitRankConfig") {
    expected = call + " on the world of " + std::to_string(world.size()) + " ranks";
  }
  if (call == "ncclCommSplit") {
    expected = call + " for cp group " + group_text(world) + " on the world of 3 ranks";
  }
  expected += ": unhandled system error (run with NCCL_DEBUG=INFO for details) (code 2)";
  // Time for each to find out; then whichever sees a wrong message ends the job with another code.
  if (world.rank() == victim) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    end_with(world, error, expected);
  }
  require(error.find(expected) != std::string::npos,
          "rank " + std::to_string(world.rank()) + ": " + error);
  std::this_thread::sleep_for(std::chrono::seconds(600));
}

// An asynchronous error ends a wait at once.
void asynchronous_fault(MpiWorld& world) {
  Fixture f(world, 30.0);
  const Tensor x = filled(f.queue, DType::F32, {8}, world.rank());
  f.group->all_reduce(x);
  f.queue.synchronize();
  if (world.rank() == world.size() - 1) std::this_thread::sleep_for(std::chrono::seconds(600));
  emulation::set_faults("ncclCommGetAsyncError:20:6@0");  // those before it settle the call
  const int64_t begin_ns = now_ns();
  const std::string error = error_of([&] {
    f.group->all_reduce(x);
    f.queue.synchronize();
  });
  require(now_ns() - begin_ns < 10'000'000'000, "long before the deadline");
  require(error.find(not_answering(world)) != std::string::npos, error);
  end_with(world, error, "remote process exited or there was a network error (code 6)");
}

// One rank's GPU never ends an operation; its host waits like the others.
void device_hangs(MpiWorld& world) {
  const int stuck = world.size() - 1;
  setenv("TESTBED_EMULATION_HANG", ("ncclAllReduce:2@" + std::to_string(stuck)).c_str(), 1);
  Fixture f(world, 1.0);
  const Tensor x = filled(f.queue, DType::F32, {8}, world.rank());
  const std::string error = error_of([&] {
    for (int i = 0; i < 3; ++i) f.group->all_reduce(x);
    f.queue.synchronize();
  });
  require(error.find("all ranks answered") != std::string::npos, error);
  require(error.find("ncclAllReduce on cp group " + group_text(world)) != std::string::npos, error);
  end_with(world, error, "the GPU did not finish within 1 s");
}

// D32: one host stops between two steps.
void rank_stops(MpiWorld& world) {
  Fixture f(world, 1.0);
  const Tensor x = filled(f.queue, DType::F32, {8}, world.rank());
  f.group->all_reduce(x);
  f.queue.synchronize();
  if (world.rank() == world.size() - 1) std::this_thread::sleep_for(std::chrono::seconds(600));
  // The waits begin at different times, which is no reason to be named.
  std::this_thread::sleep_for(std::chrono::milliseconds(400 * world.rank()));
  const std::string error = error_of([&] {
    f.group->all_reduce(x);
    f.queue.synchronize();
  });
  end_with(world, error, not_answering(world));
}

void rank_never_comes(MpiWorld& world) {
  world.set_waiting({.deadline_s = 1.0, .may_spin = false});
  const auto control = world.make_control();
  cuda::Queue queue;
  // It makes what the world of NCCL is made from, and stops.
  if (world.rank() == world.size() - 1) {
    const RollCall roll_call(world.hosts());
    std::this_thread::sleep_for(std::chrono::seconds(600));
  }
  const std::string error =
      error_of([&] { const NcclWorld nccl(world, *control, queue, steady_clock(), 1.0); });
  end_with(world, error, "control barrier: " + late_rank(world));
}

void rank_stops_in_init(MpiWorld& world) {
  const std::string stuck = std::to_string(world.size() - 1);
  setenv("TESTBED_EMULATION_HANG", ("ncclCommInitRankConfig:1@" + stuck).c_str(), 1);
  const std::string error = error_of([&] { const Fixture f(world, 1.0); });
  require(error.find("ncclCommInitRankConfig on the world of " + std::to_string(world.size()) +
                     " ranks did not end within 1 s") != std::string::npos,
          error);
  end_with(world, error, not_answering(world));
}

// The stand-in's own: what NCCL would hang or crash at.
void ranks_disagree(MpiWorld& world) {
  Fixture f(world, 30.0);
  const Tensor x = filled(f.queue, DType::F32, {world.rank() == 0 ? 8 : 9}, world.rank());
  const std::string error = error_of([&] {
    f.group->all_reduce(x);
    f.queue.synchronize();
  });
  end_with(world, error, "(code 5): ncclAllReduce: ranks disagree on what they call");
}

void run(MpiWorld& world, const std::string& mode) {
  if (mode.rfind("nccl", 0) == 0) return fault(world, mode);
  if (mode == "asynchronous_fault") return asynchronous_fault(world);
  if (mode == "device_hangs") return device_hangs(world);
  if (mode == "ranks_disagree") return ranks_disagree(world);
  if (mode == "rank_stops") return rank_stops(world);
  if (mode == "rank_never_comes") return rank_never_comes(world);
  if (mode == "rank_stops_in_init") return rank_stops_in_init(world);
  throw std::runtime_error("no mode " + mode);
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) { return testbed::run_on_mpi(&testbed::run, argc, argv); }
