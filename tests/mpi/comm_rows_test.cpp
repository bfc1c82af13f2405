// Reduce-scatter and exchanges of rows on real ranks. comm_rows_test [deadline]: without a mode
// everything that ends well; deadline leaves the last rank behind for a while.
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "tests/mpi/comm_checks.hpp"
#include "tests/mpi/rank_tests.hpp"

namespace testbed {
namespace {

struct Variant {
  const char* name;
  AllReduceSizes sizes;
  int64_t largest_message;
};
constexpr Variant variants[] = {
    {"as chosen", {}, mpi_largest_message},
    {"pieces of 4 KiB, messages of 999 bytes", {.piece_bytes = 4096}, 999},
};

// Of the records that a group's one operation leaves.
void check_record(const Records& records,
                  const Communicator& group,
                  CommOp op,
                  int64_t payload_bytes,
                  int64_t wire_bytes,
                  const std::string& what) {
  if (group.size() == 1) {
    require(records.all.empty() && wire_bytes == 0, what + ": a group of one reports nothing");
    return;
  }
  if (payload_bytes == 0 && op != CommOp::all_to_all) {
    require(records.all.empty() && wire_bytes == 0, what + ": of nothing there is no call");
    return;
  }
  require_equal<size_t>(records.all.size(), 1, what + ": records");
  const CommRecord& record = records.all.front();
  require(record.op == op && record.algorithm == CommAlgorithm::direct, what + ": op, algorithm");
  require_equal(record.payload_bytes, payload_bytes, what + ": payload");
  require_equal(record.wire_bytes, wire_bytes, what + ": wire bytes");
  require(record.post_begin_ns > 0 && record.post_begin_ns <= record.post_end_ns &&
              record.post_end_ns == record.wait_end_ns,
          what + ": stamps");
}

// Part rank() of the very bits that an all-reduce gives, into a tensor of its own or in place.
void check_reduce_scatter(
    Communicator& group, DType dtype, int64_t rows, bool in_place, const std::string& what) {
  constexpr int64_t row = 7;
  Tensor x(dtype, {group.size() * rows, row});
  Tensor own(dtype, {rows, row});
  fill(x, group.rank(), random_value);
  const TensorView out = in_place ? x.view().rows(group.rank() * rows, rows) : own.view();
  Records records;
  group.set_sink(&records);
  const SentBytes bytes(group);
  group.reduce_scatter(x, out);
  const int64_t sent = bytes.since();
  group.set_sink(nullptr);
  for (int64_t i = 0; i < out.n_elements(); ++i) {
    const int64_t at = group.rank() * rows * row + i;
    require(bits_at(out, i) == expected_bits(dtype, group.size(), at, random_value),
            what + ": element " + std::to_string(i) + " differs from the sum in rank order");
  }
  require_equal(sent, (group.size() - 1) * own.n_bytes(), what + ": (n-1)/n of the payload");
  check_record(records, group, CommOp::reduce_scatter, x.n_bytes(), sent, what);
}

void reduce_scatters(MpiWorld& world) {
  for (const Variant& variant : variants) {
    const auto group =
        world.make_group(everyone(world), Axis::tp, variant.sizes, variant.largest_message);
    for (const DType dtype : {DType::F32, DType::BF16}) {
      for (const int64_t rows : {0, 1, 600, 30'011}) {
        for (const bool in_place : {false, true}) {
          check_reduce_scatter(*group,
                               dtype,
                               rows,
                               in_place,
                               std::string("reduce_scatter ") + variant.name + ", " +
                                   std::string(dtype_name(dtype)) + " x " + std::to_string(rows) +
                                   (in_place ? ", in place" : ""));
        }
      }
    }
  }
}

// Rows from one rank to another: uneven; some pairs and one whole rank exchange none.
int64_t rows_between(int source, int target, int64_t most) {
  if (target == 1 || (source + target) % 3 == 2) return 0;
  return most * (source + 1) / (target + 2) + 1;
}
// Element i of the rows of a pair.
float row_value(int source, int target, int64_t i) {
  return random_value(source * 100 + target, i);
}

void fill_rows(TensorView x, int source, int target) {
  for (int64_t i = 0; i < x.n_elements(); ++i) {
    const float value = row_value(source, target, i);
    if (x.dtype() == DType::F32) {
      x.as<float>()[i] = value;
    } else {
      x.as<bf16>()[i] = to_bf16(value);
    }
  }
}

void check_all_to_all(Communicator& group, DType dtype, int64_t most, const std::string& what) {
  const int me = group.rank();
  std::vector<int64_t> send_rows(static_cast<size_t>(group.size()));
  std::vector<int64_t> recv_rows(send_rows.size());
  for (int r = 0; r < group.size(); ++r) {
    send_rows[static_cast<size_t>(r)] = rows_between(me, r, most);
    recv_rows[static_cast<size_t>(r)] = rows_between(r, me, most);
  }
  const auto total = [](const std::vector<int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), int64_t{0});
  };
  Tensor send(dtype, {total(send_rows), 3, 11});
  Tensor recv(dtype, {total(recv_rows), 3, 11});
  Tensor expected(dtype, recv.shape());
  int64_t sent_at = 0;
  int64_t received_at = 0;
  for (int r = 0; r < group.size(); ++r) {
    const int64_t n_sent_rows = send_rows[static_cast<size_t>(r)];
    const int64_t n_received = recv_rows[static_cast<size_t>(r)];
    fill_rows(send.view().rows(sent_at, n_sent_rows), me, r);
    fill_rows(expected.view().rows(received_at, n_received), r, me);
    sent_at += n_sent_rows;
    received_at += n_received;
  }
  Records records;
  group.set_sink(&records);
  const SentBytes bytes(group);
  group.all_to_all(send, send_rows, recv, recv_rows);
  const int64_t sent = bytes.since();
  group.set_sink(nullptr);
  for (int64_t i = 0; i < recv.n_elements(); ++i) {
    require(bits_at(recv, i) == bits_at(expected, i), what + ": element " + std::to_string(i));
  }
  const int64_t own_bytes = send_rows[static_cast<size_t>(me)] * row_bytes(send);
  require_equal(sent, send.n_bytes() - own_bytes, what + ": all rows but its own are sent");
  check_record(records, group, CommOp::all_to_all, send.n_bytes(), sent, what);
}

void all_to_alls(MpiWorld& world) {
  for (const Variant& variant : variants) {
    const auto group =
        world.make_group(everyone(world), Axis::ep, variant.sizes, variant.largest_message);
    require_equal(group->group().n_nodes(), 1, "all ranks are on one host");
    for (const DType dtype : {DType::F32, DType::BF16}) {
      for (const int64_t most : {0, 5, 3'001}) {
        check_all_to_all(*group,
                         dtype,
                         most,
                         std::string("all_to_all ") + variant.name + ", " +
                             std::string(dtype_name(dtype)) + ", rows up to " +
                             std::to_string(most));
      }
    }
    if (variant.largest_message == 999) {
      require(largest_sent <= 999, "no message is longer than the limit");
    }
    largest_sent = 0;
  }
}

// Nobody has rows: no message, and nobody waits.
void an_exchange_of_nothing(MpiWorld& world) {
  const auto group = world.make_group(everyone(world), Axis::ep);
  const std::vector<int64_t> none(static_cast<size_t>(world.size()), 0);
  const int64_t before = n_sent;
  group->all_to_all({nullptr, DType::BF16, {0, 64}}, none, {nullptr, DType::BF16, {0, 64}}, none);
  require_equal(n_sent, before, "messages of an exchange of nothing");
}

void everything(MpiWorld& world, bool shares_memory) {
  world.set_shared_memory({.enabled = shares_memory});
  reduce_scatters(world);
  largest_sent = 0;
  all_to_alls(world);
  an_exchange_of_nothing(world);
  world.make_control()->barrier();
}

// The last rank comes after the deadline, and only then sends what the others have given up.
void deadline(MpiWorld& world) {
  const auto patient = world.make_control();
  world.set_waiting({.deadline_s = 1.0, .may_spin = false});
  const auto group = world.make_group(everyone(world), Axis::ep);
  const auto other = world.make_group(everyone(world), Axis::tp);
  const auto n = static_cast<int64_t>(world.size());
  Tensor x(DType::F32, {n, 16});
  Tensor y(DType::F32, {n, 16});
  Tensor part(DType::F32, {1, 16});
  const std::vector<int64_t> one(static_cast<size_t>(n), 1);
  if (world.rank() == world.size() - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3000));
    group->all_to_all(x, one, y, one);
    other->reduce_scatter(x, part);
  } else {
    require_equal<std::string>(
        error_of([&] { group->all_to_all(x, one, y, one); }),
        "all_to_all on ep group " + group_text(world) + ": " + late_rank(world),
        "all_to_all");
    require_equal<std::string>(
        error_of([&] { other->reduce_scatter(x, part); }),
        "reduce_scatter on tp group " + group_text(world) + ": " + late_rank(world),
        "reduce_scatter");
  }
  patient->barrier();
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) {
  testbed::MpiWorld world;
  return testbed::on_every_rank(world, [&] {
    if (argc > 1 && std::string(argv[1]) == "deadline") {
      testbed::deadline(world);
    } else {
      for (const bool shares_memory : {true, false}) testbed::everything(world, shares_memory);
    }
    return 0;
  });
}
