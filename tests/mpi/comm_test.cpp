// The MPI communicator, control channel and clocks on real ranks. comm_test [MODE]: without a mode
// everything that ends well; deadline, whereabouts, deadline_abort and abort leave a rank behind on
// purpose; large sends more than 2^31 bytes.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/clock.hpp"
#include "kernels/base/errors.hpp"
#include "parallel/comm/clock_sync.hpp"
#include "parallel/comm/inject.hpp"
#include "parallel/comm/mpi_world.hpp"
#include "tests/mpi/comm_checks.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace {
int64_t n_open_groups = 0;
int stalled_tests = 0;  // so many MPI_Testall say "not yet", whatever has come
}  // namespace

extern "C" int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm* created) {
  ++n_open_groups;
  return PMPI_Comm_create_group(comm, group, tag, created);
}
extern "C" int MPI_Comm_free(MPI_Comm* comm) {
  --n_open_groups;
  return PMPI_Comm_free(comm);
}

extern "C" int MPI_Testall(int count, MPI_Request* requests, int* done, MPI_Status* statuses) {
  if (stalled_tests == 0) return PMPI_Testall(count, requests, done, statuses);
  --stalled_tests;
  *done = 0;
  return MPI_SUCCESS;
}

namespace testbed {
namespace {

constexpr int64_t sizes[] = {0, 1, 7, 4096, (int64_t{1} << 18) + 3};

void check_all_reduce(
    Communicator& group, DType dtype, int64_t n, Value value, const std::string& what) {
  Records records;
  group.set_sink(&records);
  Tensor x(dtype, {n});
  fill(x, group.rank(), value);
  const SentBytes bytes(group);
  group.all_reduce(x);
  group.set_sink(nullptr);
  const int64_t sent = bytes.since();
  for (int64_t i = 0; i < n; ++i) {
    if (bits_at(x, i) != expected_bits(dtype, group.size(), i, value)) {
      throw std::runtime_error(what + ": element " + std::to_string(i) +
                               " differs from the sum in rank order");
    }
  }
  if (group.size() == 1) {
    require(records.all.empty() && sent == 0, what + ": a group of one reports and sends nothing");
    return;
  }
  if (n == 0) {
    require(records.all.empty() && sent == 0, what + ": nothing to sum is no call");
    return;
  }
  require_equal<size_t>(records.all.size(), 1, what + ": records");
  const CommRecord& record = records.all.front();
  require_equal(record.payload_bytes, x.n_bytes(), what + ": payload");
  require_equal(record.wire_bytes, sent, what + ": wire bytes against bytes really sent");
  require(record.post_begin_ns > 0 && record.post_begin_ns <= record.post_end_ns &&
              record.post_end_ns == record.wait_begin_ns &&
              record.wait_begin_ns == record.wait_end_ns,
          what + ": stamps");
  if (record.algorithm == CommAlgorithm::one_shot) {
    require_equal(sent, (group.size() - 1) * x.n_bytes(), what + ": one-shot wire bytes");
  }
}

void all_reduces(MpiWorld& world, bool shares_memory) {
  struct Variant {
    const char* name;
    AllReduceSizes sizes;
    int64_t largest_message;
  };
  const Variant variants[] = {
      {"as chosen", {}, mpi_largest_message},
      {"one-shot",
       {.one_shot_bytes = int64_t{1} << 40, .one_shot_ranks = 1000},
       mpi_largest_message},
      {"two-shot", {.one_shot_bytes = -1}, mpi_largest_message},
      {"two-shot in pieces of 4 KiB",
       {.one_shot_bytes = -1, .piece_bytes = 4096},
       mpi_largest_message},
      {"two-shot in pieces of 4 KiB, messages of 999 bytes",
       {.one_shot_bytes = -1, .piece_bytes = 4096},
       999},
  };
  for (const Variant& variant : variants) {
    if (shares_memory && variant.largest_message != mpi_largest_message) continue;
    const auto group =
        world.make_group(everyone(world), Axis::world, variant.sizes, variant.largest_message);
    for (const DType dtype : {DType::F32, DType::BF16}) {
      for (const int64_t n : sizes) {
        const std::string what = std::string("all_reduce ") + variant.name + ", " +
                                 std::string(dtype_name(dtype)) + " x " + std::to_string(n);
        check_all_reduce(*group, dtype, n, random_value, what);
        if (dtype == DType::F32)
          check_all_reduce(*group, dtype, n, whole_value, what + ", whole numbers");
      }
    }
  }
}

// docs/metrics.md states the limit.
void algorithm_by_size(Communicator& group) {
  if (group.size() == 1) return;
  const int64_t limit = (group.size() == 2 ? 64 : 32) * 1024;
  for (const int64_t n_bytes : {limit, limit + 4}) {
    Records records;
    group.set_sink(&records);
    Tensor x(DType::F32, {n_bytes / 4});
    group.all_reduce(x);
    group.set_sink(nullptr);
    const auto expected = n_bytes == limit ? CommAlgorithm::one_shot : CommAlgorithm::two_shot;
    require_equal(algorithm_name(records.all.at(0).algorithm),
                  algorithm_name(expected),
                  "algorithm of " + std::to_string(n_bytes) + " bytes");
  }
}

// The sum of everyone's wire bytes is 2(n-1) payloads, however the elements divide.
void two_shot_total(MpiWorld& world, ControlChannel& control) {
  const auto group = world.make_group(everyone(world), Axis::world, {.one_shot_bytes = -1});
  const SentBytes bytes(*group);
  Tensor x(DType::F32, {10'007});
  group->all_reduce(x);
  ByteWriter out;
  out.put(bytes.since());
  int64_t total = 0;
  for (const Bytes& theirs : control.all_gather(out.take())) {
    int64_t sent = 0;
    ByteReader(theirs).get(sent);
    total += sent;
  }
  require_equal(total, 2 * (world.size() - 1) * x.n_bytes(), "two-shot, everyone's wire bytes");
}

void gathers_and_broadcasts(Communicator& group) {
  const int n_ranks = group.size();
  for (const int64_t n : sizes) {
    Records records;
    group.set_sink(&records);
    Tensor local(DType::F32, {n});
    Tensor all(DType::F32, {n_ranks, n});
    fill(local, group.rank(), random_value);
    const SentBytes of_gather(group);
    group.all_gather(local, all);
    const int64_t gather_sent = of_gather.since();
    for (int64_t i = 0; i < n_ranks * n; ++i) {
      const float expected = random_value(static_cast<int>(i / n), i % n);
      require(all.as<float>()[i] == expected, "all_gather of " + std::to_string(n));
    }
    const int root = n_ranks - 1;
    const SentBytes of_broadcast(group);
    group.broadcast(local, root);
    const int64_t broadcast_sent = of_broadcast.since();
    for (int64_t i = 0; i < n; ++i) {
      require(local.as<float>()[i] == random_value(root, i), "broadcast of " + std::to_string(n));
    }
    group.barrier();
    group.set_sink(nullptr);
    if (n_ranks == 1) {
      require(records.all.empty(), "a group of one reports nothing");
      continue;
    }
    if (n == 0) {
      require_equal<size_t>(records.all.size(), 1, "of nothing, the barrier alone is a call");
      continue;
    }
    require_equal<size_t>(records.all.size(), 3, "records");
    require_equal(records.all[0].payload_bytes, all.n_bytes(), "all_gather payload");
    require_equal(
        records.all[0].wire_bytes, (n_ranks - 1) * local.n_bytes(), "all_gather wire bytes");
    require_equal(records.all[0].wire_bytes, gather_sent, "all_gather bytes really sent");
    require_equal(records.all[1].wire_bytes, broadcast_sent, "broadcast bytes really sent");
    require_equal(records.all[1].sequence, records.all[0].sequence + 1, "sequence");
    require_equal(records.all[2].sequence, records.all[0].sequence + 2, "sequence");
  }
}

// Numbered in order per group, whether anyone listens or not.
void sequences(MpiWorld& world) {
  const auto group = world.make_group(everyone(world), Axis::tp);
  if (group->size() == 1) return;
  Tensor x(DType::F32, {3});
  group->all_reduce(x);
  group->barrier();
  Records records;
  group->set_sink(&records);
  group->all_reduce(x);
  require_equal<int64_t>(records.all.at(0).sequence, 2, "sequence after two unheard collectives");
  require(records.all[0].axis == Axis::tp && records.all[0].group_id == 0,
          "axis and group of the record");
  require_equal(records.all[0].group_size, group->size(), "group size of the record");
}

void messages_in_order(MpiWorld& world) {
  const auto group = world.make_group(everyone(world), Axis::pp, {}, 1000);
  if (group->size() == 1) return;
  const int next = (group->rank() + 1) % group->size();
  const int previous = (group->rank() + group->size() - 1) % group->size();
  Records records;
  largest_sent = 0;
  const int64_t n_sent_before = n_sent;
  constexpr int64_t lengths[] = {5, 2501, 0, 1};  // elements; 2501 floats are 11 messages
  for (int round = 0; round < 2; ++round) {
    group->set_sink(round == 0 ? nullptr : &records);
    std::vector<Tensor> out;
    std::vector<Tensor> in;
    std::vector<Pending> pending;
    for (const int64_t n : lengths) {
      fill(out.emplace_back(DType::F32, Shape{n}), group->rank() * 10 + round, whole_value);
      in.emplace_back(DType::F32, Shape{n});
    }
    for (size_t i = 0; i < out.size(); ++i) pending.push_back(group->send(out[i], next));
    for (size_t i = 0; i < in.size(); ++i) pending.push_back(group->recv(in[i], previous));
    for (Pending& p : pending) p.wait();
    for (const Tensor& x : in) {
      for (int64_t i = 0; i < x.n_elements(); ++i) {
        require(x.as<float>()[i] == whole_value(previous * 10 + round, i),
                "messages arrive in order");
      }
    }
  }
  require(largest_sent <= 1000, "D23: no message is longer than the limit");
  require_equal<int64_t>(n_sent - n_sent_before, 2 * (1 + 11 + 0 + 1), "D23: pieces");
  require_equal<size_t>(records.all.size(), 6, "records of messages; none of the empty ones");
  constexpr size_t filled[] = {0, 1, 3};
  for (size_t i = 0; i < records.all.size(); ++i) {
    const CommRecord& record = records.all[i];
    const bool is_send = i < 3;
    const size_t number = filled[i % 3];
    const int64_t n_bytes = lengths[number] * 4;
    require(record.op == (is_send ? CommOp::send : CommOp::recv), "op of a message");
    require_equal(record.peer, is_send ? next : previous, "peer");
    require_equal(record.sequence, 4 + static_cast<int64_t>(number), "sequence of a message");
    require_equal(record.payload_bytes, n_bytes, "payload of a message");
    require_equal(record.wire_bytes, is_send ? n_bytes : 0, "wire bytes of a message");
    require(record.post_begin_ns <= record.post_end_ns &&
                record.post_end_ns <= record.wait_begin_ns &&
                record.wait_begin_ns <= record.wait_end_ns,
            "stamps of a message");
  }
}

// Everyone sends and receives at once, also to itself when alone; after n shifts each has its own
// again.
void ring(Communicator& group) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  Tensor held(DType::F32, {500'000});
  Tensor coming(DType::F32, {500'000});
  fill(held, group.rank(), random_value);
  for (int shift = 0; shift < group.size(); ++shift) {
    Pending received = group.recv(coming, previous);
    Pending sent = group.send(held, next);
    sent.wait();
    received.wait();
    std::swap(held, coming);
  }
  for (int64_t i = 0; i < held.n_elements(); ++i) {
    require(held.as<float>()[i] == random_value(group.rank(), i), "ring");
  }
}

void neighbours_apart(MpiWorld& world) {
  if (world.size() < 4 || world.size() % 2 != 0) return;
  const Mesh mesh{.tp = 2, .pp = world.size() / 2};
  const auto tp = world.make_group(mesh.group(world.rank(), Axis::tp), Axis::tp);
  const auto pp = world.make_group(mesh.group(world.rank(), Axis::pp), Axis::pp);
  Tensor x(DType::F32, {1});
  for (Communicator* group : {tp.get(), pp.get()}) {
    x.as<float>()[0] = static_cast<float>(world.rank());
    group->all_reduce(x);
    const std::vector<int>& ranks = group->group().world_ranks;
    require(x.as<float>()[0] == static_cast<float>(std::accumulate(ranks.begin(), ranks.end(), 0)),
            "sum over a group");
  }
}

Bytes text_bytes(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

void control_messages(ControlChannel& control) {
  const int n_ranks = control.size();
  const auto of = [](int rank) {
    return text_bytes(std::string(static_cast<size_t>(rank) * 100'000, 'x'));
  };
  require(control.broadcast(control.rank() == n_ranks - 1 ? text_bytes("all") : Bytes{},
                            n_ranks - 1) == text_bytes("all"),
          "control broadcast");
  const std::vector<Bytes> gathered = control.gather(of(control.rank()), 0);
  require_equal(
      gathered.size(), control.rank() == 0 ? static_cast<size_t>(n_ranks) : 0, "gathered");
  const std::vector<Bytes> all = control.all_gather(of(control.rank()));
  for (int r = 0; r < n_ranks; ++r) {
    require(all[static_cast<size_t>(r)] == of(r), "control all_gather");
    if (control.rank() == 0) require(gathered[static_cast<size_t>(r)] == of(r), "control gather");
  }
  // Long messages both ways before anyone receives: post must not wait.
  const int next = (control.rank() + 1) % n_ranks;
  const int previous = (control.rank() + n_ranks - 1) % n_ranks;
  for (int i = 0; i < 5; ++i)
    control.post(Bytes(1'000'000, std::byte{static_cast<uint8_t>(i)}), next);
  for (int i = 0; i < 5; ++i) {
    require(control.receive(previous) == Bytes(1'000'000, std::byte{static_cast<uint8_t>(i)}),
            "posts arrive in order");
  }
  control.barrier();
}

void agreement(ControlChannel& control) {
  control.agree(std::nullopt);
  if (control.size() < 2) return;
  try {
    control.agree(control.rank() == 0 ? std::nullopt : std::optional<std::string>("no room"));
  } catch (const JobError& error) {
    require_equal<std::string>(
        error.what(), "rank 1 (" + control.host() + "): no room", "agreed error");
    return;
  }
  throw std::runtime_error("an error of another rank was not thrown");
}

// MPI has few communicators: one that is made and dropped must go.
void groups_are_freed(MpiWorld& world) {
  constexpr int n_groups = 60;
  const int64_t n_before = n_open_groups;
  Tensor x(DType::F32, {1});
  for (int i = 0; i < n_groups; ++i) {
    const auto group = world.make_group(everyone(world), Axis::world);
    x.as<float>()[0] = 1;
    group->all_reduce(x);
    require(x.as<float>()[0] == static_cast<float>(world.size()),
            "all_reduce of a short-lived group");
  }
  require_equal(n_open_groups, n_before, "groups left open");
}

// A channel may be dropped with messages on their way: they arrive whole.
void posts_outlive_their_call(MpiWorld& world) {
  const auto control = world.make_control();
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  const Bytes message(3'000'000, std::byte{42});
  if (world.rank() == 0) {
    control->post(message, next);
    if (world.size() > 1) return;  // the destructor sends what is left
  } else if (world.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (world.rank() <= 1 && previous == 0) {
    require(control->receive(0) == message, "a post whose sender has dropped the channel");
  }
}

// A process that was itself stopped past the deadline finds that everything has come: no error, and
// none that names nobody.
void a_deadline_with_nobody_missing(MpiWorld& world) {
  constexpr int tag = 9;
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  const int mine = world.rank();
  int theirs = -1;
  MpiRequests requests;
  requests.recv(&theirs, sizeof theirs, previous, tag, MPI_COMM_WORLD);
  requests.send(&mine, sizeof mine, next, tag, MPI_COMM_WORLD);
  // Comes after the message above, so that this is there too.
  char after = 0;
  char before = 0;
  MPI_Sendrecv(&before,
               1,
               MPI_CHAR,
               next,
               tag + 1,
               &after,
               1,
               MPI_CHAR,
               previous,
               tag + 1,
               MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  stalled_tests = 64;
  requests.wait({.deadline_s = 0, .may_spin = true},
                [](const std::vector<int>&) { return std::string("everything had come"); });
  stalled_tests = 0;
  require_equal(theirs, previous, "message received at the deadline");
}

// The ranks are on one host, so that the true offset is 0: an estimate as if they were not must be
// within its error.
void clocks(ControlChannel& control, const std::vector<std::string>& hosts) {
  const ClockOffset same = estimate_clock_offset(control, hosts);
  require(same.offset_ns == 0 && same.error_ns == 0, "one host has one clock");
  std::vector<std::string> apart;
  for (size_t r = 0; r < hosts.size(); ++r) apart.push_back("host" + std::to_string(r));
  const ClockOffset offset = estimate_clock_offset(control, apart);
  require(std::abs(offset.offset_ns) <= offset.error_ns, "the offset's error bound holds");
  require((offset.error_ns > 0) == (control.rank() > 0), "an estimate has an error");
}

// D31: only the named rank is late, only every other time.
void injected_delay(MpiWorld& world) {
  if (world.size() == 1) return;
  constexpr int64_t delay_ms = 150;
  const int late = world.size() - 1;
  world.install(Faults::of({{.rank = late, .delay_us = delay_ms * 1000, .every = 2}},
                           world.rank(),
                           {.may_spin = false}));
  const auto group = world.make_group(everyone(world), Axis::world);
  world.install(nullptr);
  Records records;
  group->set_sink(&records);
  int64_t own_ms[3];
  Tensor x(DType::F32, {8});
  for (int64_t& ms : own_ms) {
    group->barrier();
    const int64_t begin_ns = now_ns();
    group->all_reduce(x);
    ms = (records.all.back().post_begin_ns - begin_ns) / 1'000'000;
  }
  group->set_sink(nullptr);
  if (world.rank() == late)
    require(own_ms[0] >= delay_ms && own_ms[2] >= delay_ms, "the late rank arrives late");
  require(own_ms[1] < delay_ms, "a call in between is not late");
  if (world.rank() != late)
    require(std::min(own_ms[0], own_ms[2]) < delay_ms, "the others are not late");
}

// By MPI's messages or through shared memory.
void everything(MpiWorld& world, bool shares_memory) {
  world.set_shared_memory({.enabled = shares_memory});
  require(!singleton_under_launcher(world.size()), "this is how it should be started");
  require(world.settings().at("OMPI_MCA_btl_vader_single_copy_mechanism") == "none",
          "the setting is told");
  const auto control = world.make_control();
  const auto group = world.make_group(everyone(world), Axis::world);
  require_equal<std::string_view>(
      group->transport(), world.size() == 1 ? "none" : "shm", "transport");
  all_reduces(world, shares_memory);
  algorithm_by_size(*group);
  two_shot_total(world, *control);
  gathers_and_broadcasts(*group);
  sequences(world);
  messages_in_order(world);
  ring(*group);
  neighbours_apart(world);
  control_messages(*control);
  agreement(*control);
  groups_are_freed(world);
  posts_outlive_their_call(world);
  a_deadline_with_nobody_missing(world);
  clocks(*control, world.hosts());
  injected_delay(world);
  control->barrier();
}

// The last rank comes after the deadline; then it joins in, so that MPI ends in order.
void deadline(MpiWorld& world) {
  const auto patient = world.make_control();
  world.set_waiting({.deadline_s = 1.0, .may_spin = false});
  const auto group = world.make_group(everyone(world), Axis::tp);
  const auto hasty = world.make_control();
  Tensor x(DType::F32, {16});
  Tensor y(DType::F32, {16});
  const int late = world.size() - 1;
  if (world.rank() == late) {
    std::fill_n(y.as<float>(), y.n_elements(), 1.0F);
    std::this_thread::sleep_for(std::chrono::milliseconds(4500));
    group->all_reduce(x);
    hasty->barrier();
    for (int r = 0; r < late; ++r) group->send(y, r).wait();
  } else {
    require_equal<std::string>(
        error_of([&] { group->all_reduce(x); }),
        "all_reduce on tp group " + group_text(world) + ": " + late_rank(world),
        "all_reduce");
    require_equal<std::string>(
        error_of([&] { hasty->barrier(); }), "control barrier: " + late_rank(world), "barrier");
    require_equal<std::string>(error_of([&] { group->recv(y, late).wait(); }),
                               "recv on tp group " + group_text(world) + ": " + late_rank(world),
                               "recv");
  }
  patient->barrier();
  // What comes after an error is not written where it was to go: the caller may have freed it.
  if (world.rank() != late) {
    require(
        std::all_of(y.as<float>(), y.as<float>() + y.n_elements(), [](float v) { return v == 0; }),
        "a receive that timed out still wrote its buffer");
  }
}

// Who is at what, as the others see it on the deadline and as each host reports it.
void whereabouts(MpiWorld& world) {
  const int late = world.size() - 1;
  const auto control = world.make_control();
  world.set_waiting({.deadline_s = 1.0, .may_spin = false});
  const auto group = world.make_group(everyone(world), Axis::tp);
  const Tensor x(DType::F32, {16});
  group->all_reduce(x);
  if (world.rank() != late) {
    const std::string name = "rank " + std::to_string(late);
    const std::string error = whole_error_of([&] { group->barrier(); });
    require(error.find("within 1 s; " + name + " left all_reduce 0 on tp (") != std::string::npos,
            "the deadline says what the late rank did last: " + error);
    const std::string report = world.board().report();
    require(report.find("rank " + std::to_string(world.rank()) + " has been in barrier 1 on tp") !=
                std::string::npos,
            "the report says what this rank is at: " + report);
    const size_t line = report.find(name + " left all_reduce 0 on tp");
    require(
        line != std::string::npos && report.find("[did not arrive]\n", line) != std::string::npos,
        "the report says who did not arrive: " + report);
    require(report.find("[arrived]\n") != std::string::npos, "and who did: " + report);
    require(!world.board().awaited_message(), "a collective is no message");
    whole_error_of([&] { group->recv(x, late).wait(); });
    require(world.board().awaited_message()->peer == late, "whose message was waited for");
  }
  if (world.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(5000));
  control->barrier();
}

// The last rank never comes. Whoever's deadline passes first ends the job: exit code 7 if the right
// rank was named.
void deadline_abort(MpiWorld& world) {
  world.set_waiting({.deadline_s = 1.0, .may_spin = false});
  const auto group = world.make_group(everyone(world), Axis::tp, {.one_shot_bytes = -1});
  if (world.rank() == world.size() - 1) std::this_thread::sleep_for(std::chrono::seconds(600));
  Tensor x(DType::BF16, {1'000'001});
  const std::string error = error_of([&] { group->all_reduce(x); });
  require_equal<std::string>(
      error, "all_reduce on tp group " + group_text(world) + ": " + late_rank(world), "all_reduce");
  world.abort(7);
}

// D32: one rank fails while the others wait for it.
void abort_while_waiting(MpiWorld& world) {
  const auto group = world.make_group(everyone(world), Axis::tp);
  if (world.rank() == world.size() - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    world.abort(7);
  }
  Tensor x(DType::F32, {16});
  group->all_reduce(x);
}

int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit; file >> name;) {
    int64_t kib = 0;
    if (name == "MemAvailable:" && file >> kib) return kib * 1024;
    std::getline(file, unit);
  }
  return 0;
}

// D23: 2^31 bytes and some more, as one message.
void large(MpiWorld& world) {
  constexpr int64_t n = (int64_t{1} << 29) + 1025;  // floats
  if (std::getenv("TESTBED_TEST_ALL") == nullptr || available_bytes() < n * 4 * 3) {
    if (world.rank() == 0) std::puts("skipped: needs TESTBED_TEST_ALL and 6.5 GB of memory");
    return;
  }
  const auto group = world.make_group(everyone(world), Axis::world);
  Tensor x(DType::F32, {n});
  if (group->rank() == 0) {
    for (int64_t i = 0; i < n; i += 1009) x.as<float>()[i] = static_cast<float>(i % 8191);
    group->send(x, 1).wait();
  } else if (group->rank() == 1) {
    group->recv(x, 0).wait();
    for (int64_t i = 0; i < n; ++i) {
      require(x.as<float>()[i] == (i % 1009 == 0 ? static_cast<float>(i % 8191) : 0.0F),
              "D23: a long message");
    }
  }
  group->barrier();
}

void run(MpiWorld& world, const std::string& mode) {
  if (mode == "all") {
    everything(world, true);
    return everything(world, false);
  }
  if (mode == "deadline") return deadline(world);
  if (mode == "whereabouts") return whereabouts(world);
  if (mode == "deadline_abort") return deadline_abort(world);
  if (mode == "abort") return abort_while_waiting(world);
  if (mode == "large") return large(world);
  throw std::runtime_error("no mode " + mode);
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
