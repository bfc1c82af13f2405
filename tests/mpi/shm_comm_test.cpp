// Groups that share memory: sums, fused norms, messages, hosts within hosts, and what happens where
// memory cannot be shared. shm_comm_test [MODE]: without a mode all that ends well; deadline leaves
// the last rank behind for a while, killed for good.
#include <mpi.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "kernels/cpu/cpu_device.hpp"
#include "parallel/comm/ordered_sum.hpp"
#include "tests/mpi/comm_checks.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace testbed {
namespace {

std::string text_of(DType dtype, int64_t n) {
  return std::string(dtype_name(dtype)) + " x " + std::to_string(n);
}

// Around a buffer's and a piece's end, and the changeover.
constexpr int64_t lengths[] = {1, 1023, 8193, 70'003};

Tensor make_tensor(MpiWorld& world, bool in_place, DType dtype, const Shape& shape) {
  return in_place ? world.allocate(dtype, shape) : Tensor(dtype, shape);
}

// Of groups that share no memory: none.
int64_t n_in_place(const Communicator& group) {
  const auto* const shm = dynamic_cast<const ShmCommunicator*>(&group);
  return shm == nullptr ? 0 : shm->n_in_place();
}

void check_sum(Communicator& group,
               TensorView x,
               CommAlgorithm algorithm,
               const std::string& what) {
  fill(x, group.rank(), random_value);
  Records records;
  group.set_sink(&records);
  const SentBytes bytes(group);
  group.all_reduce(x);
  const int64_t sent = bytes.since();
  group.set_sink(nullptr);
  for (int64_t i = 0; i < x.n_elements(); ++i) {
    require(bits_at(x, i) == expected_bits(x.dtype(), group.size(), i, random_value),
            what + ": element " + std::to_string(i) + " differs from the sum in rank order");
  }
  const CommRecord& record = records.all.at(0);
  require_equal(algorithm_name(record.algorithm), algorithm_name(algorithm), what);
  require_equal(record.wire_bytes, sent, what + ": wire bytes");
}

// Each algorithm, on tensors that others can write and then on those they cannot. Two-shots of the
// former are summed where they lie.
void sums(MpiWorld& world) {
  struct Way {
    const char* name;
    CommAlgorithm algorithm;
    AllReduceSizes sizes;
  };
  const Way ways[] = {
      {"one-shot", CommAlgorithm::one_shot, {.one_shot_bytes = int64_t{1} << 40}},
      {"two-shot", CommAlgorithm::two_shot, {.one_shot_bytes = -1}},
      {"two-shot of 1000 bytes", CommAlgorithm::two_shot, {-1, 8, 1000}},
  };
  for (const Way& way : ways) {
    const auto group = world.make_group(everyone(world), Axis::tp, way.sizes);
    require(dynamic_cast<ShmCommunicator*>(group.get()) != nullptr, "a group that shares memory");
    for (const bool shared : {true, false}) {
      for (const DType dtype : {DType::F32, DType::BF16}) {
        for (const int64_t n : lengths) {
          const std::string what = std::string(way.name) + ", " + text_of(dtype, n);
          const Tensor x = make_tensor(world, shared, dtype, {n});
          const int64_t before = n_in_place(*group);
          check_sum(*group, x, way.algorithm, what);
          require_equal<int64_t>(n_in_place(*group) - before,
                                 shared && way.algorithm == CommAlgorithm::two_shot ? 1 : 0,
                                 what + ": in place");
        }
      }
    }
  }
}

// Some ranks' tensors others can write, some not; so often that it is asked again where they are.
void mixed_tensors(MpiWorld& world) {
  const auto group = world.make_group(everyone(world), Axis::tp, {.one_shot_bytes = -1});
  for (const bool mixed : {true, false}) {
    const Tensor x = make_tensor(world, !mixed || world.rank() % 2 == 0, DType::F32, {301});
    require_equal<int64_t>(n_in_place(*group), 0, "in place of mixed tensors");
    for (int call = 0; call < 70; ++call) {
      fill(x, group->rank(), random_value);
      group->all_reduce(x);
      for (int64_t i = 0; i < x.n_elements(); ++i) {
        require(bits_at(x, i) == expected_bits(DType::F32, group->size(), i, random_value),
                "mixed tensors, call " + std::to_string(call));
      }
    }
  }
  require(n_in_place(*group) > 0, "in place once all share");
}

struct Rows {
  int64_t n_rows;
  int64_t d;
  bool fused;  // in a group that always may
};

// The bits of an all-reduce followed by the device's residual and norm.
void check_add_norm(
    MpiWorld& world, Communicator& group, DType dtype, const Rows& rows, bool shared) {
  const auto [n_rows, d, fused] = rows;
  const Tensor partial = make_tensor(world, shared, dtype, {n_rows, d});
  const std::string what = "add_norm of " + text_of(dtype, n_rows * d);
  CpuDevice device(std::make_shared<cpu::ThreadPool>(1, false), cpu::choose_isa(), dtype);
  const Tensor weight(DType::F32, {d});
  Tensor residual[2] = {Tensor(dtype, {n_rows, d}), Tensor(dtype, {n_rows, d})};
  Tensor out[2] = {Tensor(dtype, {n_rows, d}), Tensor(dtype, {n_rows, d})};
  fill(weight, 99, random_value);
  for (const Tensor& r : residual) fill(r, 77, random_value);
  constexpr float eps = 1e-5F;

  fill(partial, group.rank(), random_value);
  group.all_reduce(partial);
  device.add_rms_norm(residual[0], partial, weight, eps, out[0]);

  fill(partial, group.rank(), random_value);
  Records records;
  group.set_sink(&records);
  const SentBytes bytes(group);
  const int64_t before = n_in_place(group);
  const bool done = group.all_reduce_add_norm(partial, residual[1], weight, eps, out[1]);
  const int64_t sent = bytes.since();
  group.set_sink(nullptr);
  require_equal(done, fused, what + ": fused");
  require_equal<int64_t>(n_in_place(group) - before, shared && fused ? 1 : 0, what + ": in place");
  if (!fused) return;
  require_equal(algorithm_name(records.all.at(0).algorithm),
                algorithm_name(CommAlgorithm::one_shot_norm),
                what);
  require_equal(records.all[0].wire_bytes, sent, what + ": wire bytes");
  const auto same = [](const Tensor& a, const Tensor& b) {
    return std::memcmp(a.data(), b.data(), static_cast<size_t>(a.n_bytes())) == 0;
  };
  require(same(residual[0], residual[1]), what + ": residual");
  require(same(out[0], out[1]), what + ": out");
}

void add_norms(MpiWorld& world) {
  const auto always =
      world.make_group(everyone(world), Axis::tp, {.one_shot_bytes = int64_t{1} << 40});
  const auto never = world.make_group(everyone(world), Axis::tp, {.one_shot_bytes = -1});
  constexpr Rows always_rows[] = {
      {1, 64, true},
      {3, 2047, true},
      {150, 1000, true},    // several buffers
      {1, 500'000, false},  // a row fills no buffer
  };
  for (const bool shared : {true, false}) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      for (const Rows& rows : always_rows) check_add_norm(world, *always, dtype, rows, shared);
      check_add_norm(world, *never, dtype, {1, 64, false}, shared);
    }
  }
}

// Small ones fit the ring, the last does not.
constexpr int64_t message_lengths[] = {3, 40'000, 1, 700'001, 17};

void check_received(TensorView x, int source, int64_t number) {
  for (int64_t i = 0; i < x.n_elements(); ++i) {
    require(x.as<float>()[i] == random_value(source, i + number), "messages arrive in order");
  }
}

// To the neighbour, all sent before anything is received; also to itself.
void messages(MpiWorld& world, int distance) {
  const auto group = world.make_group(everyone(world), Axis::cp);
  const int next = (group->rank() + distance) % group->size();
  const int previous = (group->rank() - distance + group->size()) % group->size();
  std::vector<Tensor> out;
  std::vector<Tensor> in;
  std::vector<Pending> pending;
  out.reserve(10);
  in.reserve(10);
  pending.reserve(20);
  const SentBytes bytes(*group);
  int64_t n_bytes = 0;
  for (int64_t number = 0; number < 10; ++number) {
    const int64_t n = message_lengths[number % 5];
    Tensor& x = out.emplace_back(DType::F32, Shape{n});
    in.emplace_back(DType::F32, Shape{n});
    for (int64_t i = 0; i < n; ++i) x.as<float>()[i] = random_value(group->rank(), i + number);
    n_bytes += x.n_bytes();
    pending.push_back(group->send(x, next));
  }
  for (const Tensor& x : in) pending.push_back(group->recv(x, previous));
  for (Pending& p : pending) p.wait();
  for (size_t number = 0; number < in.size(); ++number) {
    check_received(in[number], previous, static_cast<int64_t>(number));
  }
  require_equal(bytes.since(), distance == 0 ? 0 : n_bytes, "bytes of messages");
}

// Rank 0 sends; `meanwhile` is what it does until rank 1 has it all.
void large_message(Communicator& group, const std::function<void()>& meanwhile) {
  constexpr int64_t n = 3'000'000;
  constexpr int tag = 11;
  char ack = 0;
  if (group.rank() == 0) {
    Tensor x(DType::F32, {n});
    for (int64_t i = 0; i < n; ++i) x.as<float>()[i] = random_value(0, i);
    Pending sent = group.send(x, 1);
    meanwhile();
    sent.wait();
  } else if (group.rank() == 1) {
    const Tensor x(DType::F32, {n});
    group.recv(x, 0).wait();
    check_received(x, 0, 0);
    PMPI_Send(&ack, 1, MPI_CHAR, 0, tag, MPI_COMM_WORLD);
  }
}

void wait_for_ack() {
  char ack = 0;
  PMPI_Recv(&ack, 1, MPI_CHAR, 1, 11, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// Without fetching the sender must help: between its ops, and in every wait of its process.
void messages_move(MpiWorld& world) {
  const auto group = world.make_group(everyone(world), Axis::pp);
  const auto other = world.make_group(everyone(world), Axis::tp);
  const auto control = world.make_control();
  const auto helps = [&] {
    int there = 0;
    while (there == 0) {
      group->progress();
      PMPI_Iprobe(1, 11, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    }
    wait_for_ack();
  };
  large_message(*group, helps);
  large_message(*group, [&] { other->barrier(); });
  if (group->rank() != 0) other->barrier();
  if (group->rank() == 0) wait_for_ack();
  large_message(*group, [&] { control->barrier(); });
  if (group->rank() != 0) control->barrier();
  if (group->rank() == 0) wait_for_ack();
}

// The sender is busy elsewhere: MPI's own wait moves nothing of ours.
void receiver_fetches(MpiWorld& world) {
  large_message(*world.make_group(everyone(world), Axis::pp), wait_for_ack);
}

// What is freed is gone at once, also while others have it mapped.
void freed_memory() {
  ShmHeap heap;
  int fd = -1;
  struct stat status {};
  {
    const Tensor x = heap.allocate(DType::F32, {100'000});
    fd = dup(heap.find(x.data()).fd);
    require(fstat(fd, &status) == 0 && status.st_blocks > 0, "a tensor's memory");
  }
  require(fstat(fd, &status) == 0, "the file of a freed tensor");
  close(fd);
  require_equal<int64_t>(status.st_blocks, 0, "blocks of a freed tensor");
}

// One rank has no room for the group's memory: all exchange by MPI, and know why.
void without_room(MpiWorld& world) {
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit none{.rlim_cur = 4096, .rlim_max = limit.rlim_max};
  if (world.rank() == 0) setrlimit(RLIMIT_FSIZE, &none);
  const auto group = world.make_group(everyone(world), Axis::tp);
  if (world.rank() == 0) setrlimit(RLIMIT_FSIZE, &limit);
  require(dynamic_cast<MpiCommunicator*>(group.get()) != nullptr, "a group of messages");
  require(world.exchange_within_host().find("MPI: rank 0: ") == 0 &&
              world.exchange_within_host().find("bytes of shared memory") != std::string::npos,
          "why: " + world.exchange_within_host());
  check_sum(*group, Tensor(DType::F32, {7}), CommAlgorithm::one_shot, "by messages");
  const auto again = world.make_group(everyone(world), Axis::tp);
  require_equal<std::string>(world.exchange_within_host(), "own shared memory", "with room again");
}

// Ranks in rank order on each host, then the hosts in order, rounded once.
uint32_t expected_by_host(const GroupInfo& group, DType dtype, int64_t i) {
  float sum = 0;
  bool is_first_host = true;
  for (const std::vector<int>& ranks : ShmHierarchy::ranks_by_host(group)) {
    float of_host = 0;
    for (const int r : ranks) {
      const float value = random_value(r, i);
      const float x = dtype == DType::F32 ? value : to_f32(to_bf16(value));
      of_host = r == ranks.front() ? x : of_host + x;
    }
    sum = is_first_host ? of_host : sum + of_host;
    is_first_host = false;
  }
  return dtype == DType::F32 ? std::bit_cast<uint32_t>(sum) : to_bf16(sum).bits;
}

void check_hosts(MpiWorld& world, const std::string& hosts) {
  std::vector<std::string> names;
  names.reserve(hosts.size());
  for (const char c : hosts) names.emplace_back(1, c);
  world.pretend_hosts(names);
  const auto group = world.make_group(everyone(world), Axis::tp);
  require(dynamic_cast<ShmHierarchy*>(group.get()) != nullptr, "a group of hosts");
  require_equal<std::string_view>(group->transport(), "mixed", "transport");
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const int64_t n : lengths) {
      const std::string what = "hosts " + hosts + ", " + text_of(dtype, n);
      const Tensor x(dtype, {n});
      fill(x, group->rank(), random_value);
      Records records;
      group->set_sink(&records);
      const SentBytes bytes(*group);
      group->all_reduce(x);
      const int64_t sent = bytes.since();
      group->set_sink(nullptr);
      for (int64_t i = 0; i < n; ++i) {
        require(bits_at(x, i) == expected_by_host(group->group(), dtype, i),
                what + ": element " + std::to_string(i));
      }
      require_equal(algorithm_name(records.all.at(0).algorithm),
                    algorithm_name(CommAlgorithm::hierarchical),
                    what);
      require_equal(records.all[0].wire_bytes, sent, what + ": wire bytes");
    }
  }
  messages(world, 1);
  const Tensor mine(DType::F32, {3});
  const Tensor all(DType::F32, {world.size(), 3});
  fill(mine, world.rank(), random_value);
  group->all_gather(mine, all);
  for (int r = 0; r < world.size(); ++r) check_received(all.view().rows(r, 1), r, 0);
  group->barrier();
}

void several_hosts(MpiWorld& world) {
  const std::vector<std::string> real = world.hosts();
  if (world.size() == 3) {
    for (const char* hosts : {"aab", "aba", "abb"}) check_hosts(world, hosts);
  }
  if (world.size() == 4) {
    for (const char* hosts : {"aabb", "abab", "abbb", "aabc"}) check_hosts(world, hosts);
  }
  if (world.size() == 8) {
    for (const char* hosts : {"abcabcab"}) check_hosts(world, hosts);
  }
  world.pretend_hosts(real);
}

// The measured changeover: one of the payloads, the one that costs least in all.
void changeovers(MpiWorld& world) {
  using Times = ShmCommunicator::TwoTimes;
  const Times times[] = {
      {1024, 10, 20, 0}, {2048, 21, 20, 0}, {4096, 30, 60, 0}, {8192, 90, 50, 0}};
  require_equal<int64_t>(ShmCommunicator::changeover(times), 4096, "one noisy point");
  require_equal<int64_t>(ShmCommunicator::changeover(std::span(times).subspan(3)), 0, "never");
  require_equal<int64_t>(ShmCommunicator::changeover(std::span(times).first(1)), 1024, "always");
  const auto group = world.make_group(everyone(world), Axis::tp);
  const std::string told = group->tune();
  require(told.find("by shared memory: ") == 0 && told.find("(measured)") != std::string::npos,
          told);
  std::vector<char> first(told.begin(), told.end());
  first.resize(200);
  MPI_Bcast(first.data(), 200, MPI_CHAR, 0, MPI_COMM_WORLD);
  require_equal<std::string>(told, first.data(), "all ranks chose alike");
}

void everything(MpiWorld& world) {
  sums(world);
  mixed_tensors(world);
  add_norms(world);
  for (const bool may_fetch : {true, false}) {
    world.set_shared_memory({.may_fetch = may_fetch});
    for (const int distance : {0, 1}) messages(world, distance);
    messages_move(world);
  }
  world.set_shared_memory({});
  receiver_fetches(world);
  freed_memory();
  without_room(world);
  several_hosts(world);
  changeovers(world);
  world.make_control()->barrier();
}

void tell(int rank) { PMPI_Send(nullptr, 0, MPI_CHAR, rank, 12, MPI_COMM_WORLD); }
void hear(int rank) {
  PMPI_Recv(nullptr, 0, MPI_CHAR, rank, 12, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// Rank 1 is stopped as its deadline passes, and what it waits for comes meanwhile: no error. Nor
// does it wait for rank 2, which comes to the broadcast last.
void stopped(MpiWorld& world) {
  constexpr double deadline_s = 1.0;
  bool is_stopped = true;
  const auto stop = [&](double seconds) {
    if (is_stopped || seconds <= deadline_s) return;
    is_stopped = true;
    tell(0);
    hear(0);
  };
  world.set_waiting({.deadline_s = deadline_s, .may_spin = false, .look = stop});
  const auto group = world.make_group(everyone(world), Axis::tp);
  const Tensor x(DType::F32, {16});
  const std::function<void()> ops[] = {
      [&] { world.rank() == 0 ? group->send(x, 1).wait() : group->recv(x, 0).wait(); },
      [&] { group->broadcast(x, 0); }};
  for (const auto& op : ops) {
    is_stopped = world.rank() != 1;
    if (world.rank() == 0) hear(1);
    if (world.rank() == 2) hear(1);
    if (world.rank() != 2 || &op == &ops[1]) op();
    if (world.rank() == 0) tell(1);
    if (world.rank() == 1) tell(2);
  }
}

// The last rank comes too late for each of the waits; all name it.
void deadline(MpiWorld& world) {
  const auto patient = world.make_control();
  stopped(world);
  world.set_waiting({.deadline_s = 1.0, .may_spin = false});
  const auto group = world.make_group(everyone(world), Axis::tp);
  const auto other = world.make_group(everyone(world), Axis::cp);
  const int late = world.size() - 1;
  const std::string tp = " on tp group " + group_text(world) + ": " + late_rank(world);
  const std::string cp = " on cp group " + group_text(world) + ": " + late_rank(world);
  Tensor large(DType::F32, {1'000'000});
  Tensor y(DType::F32, {16});
  if (world.rank() == late) {
    std::fill_n(y.as<float>(), y.n_elements(), 1.0F);
    std::this_thread::sleep_for(std::chrono::milliseconds(4500));
    for (int r = 0; r < late; ++r) other->send(y, r).wait();
  } else {
    require_equal(error_of([&] { group->barrier(); }), "barrier" + tp, "barrier");
    require_equal(error_of([&] { other->recv(y, late).wait(); }), "recv" + cp, "recv");
    require_equal(error_of([&] { other->send(large, late).wait(); }), "send" + cp, "send");
  }
  patient->barrier();
  // What comes after an error is not written where it was to go.
  if (world.rank() != late) {
    other->progress();
    require(
        std::all_of(y.as<float>(), y.as<float>() + y.n_elements(), [](float v) { return v == 0; }),
        "a receive that timed out still wrote its buffer");
  }
}

void killed(MpiWorld& world) {
  const auto group = world.make_group(everyone(world), Axis::tp);
  Tensor x(DType::F32, {100'000});
  group->all_reduce(x);
  if (world.rank() == world.size() - 1) std::raise(SIGKILL);
  group->all_reduce(x);
}

void run(MpiWorld& world, const std::string& mode) {
  if (mode == "deadline") return deadline(world);
  if (mode == "killed") return killed(world);
  everything(world);
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  testbed::MpiWorld world;
  return testbed::on_every_rank(world, [&] {
    testbed::run(world, argc > 1 ? argv[1] : "all");
    return 0;
  });
}
