// Collectives of the NCCL communicator on the emulated device, whose NCCL works over MPI.
#include <algorithm>
#include <numeric>

#include "kernels/base/byte_stream.hpp"
#include "tests/mpi/nccl_checks.hpp"

namespace testbed {
namespace {

constexpr int64_t sizes[] = {0, 1, 7, 4096, 100'003};
constexpr DType dtypes[] = {DType::F32, DType::BF16};

int64_t sum_over_ranks(ControlChannel& control, int64_t mine) {
  ByteWriter out;
  out.put(mine);
  int64_t sum = 0;
  for (const Bytes& bytes : control.all_gather(out.take())) {
    int64_t theirs = 0;
    ByteReader(bytes).get(theirs);
    sum += theirs;
  }
  return sum;
}

// The one record that an operation left, or that there is none.
void check_record(Fixture& f,
                  const Records& records,
                  CommOp op,
                  int64_t payload_bytes,
                  int64_t wire_bytes_of_all,
                  const std::string& what) {
  const bool is_told = f.world.size() > 1 && payload_bytes > 0;
  require_equal<size_t>(records.all.size(), is_told ? 1 : 0, what + ": records");
  if (!is_told) return;
  const CommRecord& record = records.all.front();
  require(record.op == op && record.algorithm == CommAlgorithm::nccl && !record.host,
          what + ": op, algorithm");
  require_equal(record.payload_bytes, payload_bytes, what + ": payload");
  require_equal(sum_over_ranks(*f.control, record.wire_bytes),
                wire_bytes_of_all,
                what + ": everyone's wire bytes");
}

void all_reduces(Fixture& f) {
  for (const DType dtype : dtypes) {
    for (const int64_t n : sizes) {
      const std::string what =
          "all_reduce, " + std::string(dtype_name(dtype)) + " x " + std::to_string(n);
      const Tensor x = filled(f.queue, dtype, {n}, f.world.rank());
      Records records;
      f.group->set_sink(&records);
      f.group->all_reduce(x);
      f.group->set_sink(nullptr);
      const Tensor sum = download(f.queue, x);
      for (int64_t i = 0; i < n; ++i) {
        require(bits_at(sum, i) == expected_bits(dtype, f.world.size(), i, random_value),
                what + ": element " + std::to_string(i));
      }
      check_record(f,
                   records,
                   CommOp::all_reduce,
                   x.n_bytes(),
                   2 * (f.world.size() - 1) * x.n_bytes(),
                   what);
    }
  }
}

// x [size * n] of every rank, and out: apart from it, or my part of it.
void reduce_scatters(Fixture& f, bool in_place) {
  const int size = f.world.size();
  for (const DType dtype : dtypes) {
    for (const int64_t n : sizes) {
      const std::string what = "reduce_scatter, " + std::string(dtype_name(dtype)) + " x " +
                               std::to_string(n) + (in_place ? " in place" : "");
      const Tensor x = filled(f.queue, dtype, {size, n}, f.world.rank());
      const Tensor apart = cuda::device_tensor(dtype, {1, n});
      const TensorView out = in_place ? x.view().rows(f.world.rank(), 1) : apart.view();
      Records records;
      f.group->set_sink(&records);
      f.group->reduce_scatter(x, out);
      f.group->set_sink(nullptr);
      const Tensor sum = download(f.queue, out);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = f.world.rank() * n + i;
        require(bits_at(sum, i) == expected_bits(dtype, size, at, random_value),
                what + ": element " + std::to_string(i));
      }
      check_record(f, records, CommOp::reduce_scatter, x.n_bytes(), (size - 1) * x.n_bytes(), what);
    }
  }
}

void all_gathers(Fixture& f, bool in_place) {
  const int size = f.world.size();
  for (const int64_t n : sizes) {
    const std::string what = "all_gather of " + std::to_string(n) + (in_place ? " in place" : "");
    const Tensor local = filled(f.queue, DType::BF16, {1, n}, f.world.rank());
    const Tensor out = cuda::device_tensor(DType::BF16, {size, n});
    const TensorView mine = in_place ? out.view().rows(f.world.rank(), 1) : local.view();
    if (in_place) upload(f.queue, download(f.queue, local), mine);
    Records records;
    f.group->set_sink(&records);
    f.group->all_gather(mine, out);
    f.group->set_sink(nullptr);
    const Tensor all = download(f.queue, out);
    for (int r = 0; r < size; ++r) {
      const Tensor expected(DType::BF16, {1, n});
      fill(expected, r, random_value);
      require_equal_data(all.view().rows(r, 1), expected, what);
    }
    check_record(f, records, CommOp::all_gather, out.n_bytes(), (size - 1) * out.n_bytes(), what);
  }
}

// Uneven; some pairs and one whole rank exchange none.
int64_t rows_between(int source, int target, int64_t most) {
  if (target == 1 || (source + target) % 3 == 2) return 0;
  return most * (source + 1) / (target + 2) + 1;
}

void all_to_alls(Fixture& f) {
  const int me = f.world.rank();
  for (const int64_t most : {int64_t{0}, int64_t{5}, int64_t{300}}) {
    const std::string what = "all_to_all of up to " + std::to_string(most) + " rows";
    std::vector<int64_t> send_rows;
    std::vector<int64_t> recv_rows;
    for (int r = 0; r < f.world.size(); ++r) {
      send_rows.push_back(rows_between(me, r, most));
      recv_rows.push_back(rows_between(r, me, most));
    }
    const int64_t n_sent = std::accumulate(send_rows.begin(), send_rows.end(), int64_t{0});
    const int64_t n_received = std::accumulate(recv_rows.begin(), recv_rows.end(), int64_t{0});
    const Tensor rows(DType::BF16, {n_sent, 3, 11});
    const Tensor expected(DType::BF16, {n_received, 3, 11});
    int64_t sent_at = 0;
    int64_t received_at = 0;
    for (int r = 0; r < f.world.size(); ++r) {
      const int64_t n_out = send_rows[static_cast<size_t>(r)];
      const int64_t n_in = recv_rows[static_cast<size_t>(r)];
      fill(rows.view().rows(sent_at, n_out), 100 * me + r, random_value);
      fill(expected.view().rows(received_at, n_in), 100 * r + me, random_value);
      sent_at += n_out;
      received_at += n_in;
    }
    const Tensor send = cuda::device_tensor(DType::BF16, rows.shape());
    const Tensor recv = cuda::device_tensor(DType::BF16, expected.shape());
    upload(f.queue, rows, send);
    Records records;
    f.group->set_sink(&records);
    f.group->all_to_all(send, send_rows, recv, recv_rows);
    f.group->set_sink(nullptr);
    require_equal_data(download(f.queue, recv), expected, what);
    if (f.world.size() == 1) continue;
    const int64_t own_bytes = send_rows[static_cast<size_t>(me)] * row_bytes(send);
    require(records.all.at(0).algorithm == CommAlgorithm::direct, what + ": algorithm");
    require_equal(records.all.at(0).wire_bytes, send.n_bytes() - own_bytes, what + ": wire bytes");
  }
}

void broadcasts(Fixture& f) {
  const int root = f.world.size() - 1;
  for (const int64_t n : sizes) {
    const Tensor x = filled(f.queue, DType::F32, {n}, f.world.rank());
    f.group->broadcast(x, root);
    const Tensor expected(DType::F32, {n});
    fill(expected, root, random_value);
    require_equal_data(download(f.queue, x), expected, "broadcast of " + std::to_string(n));
  }
}

// The host leaves a barrier when every device has done its work.
void barriers(Fixture& f) {
  if (f.world.size() == 1) return;
  const int late = f.world.size() - 1;
  f.control->barrier();
  const int64_t begin_ns = now_ns();
  if (f.world.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  f.group->barrier();
  require(now_ns() - begin_ns > 100'000'000, "a barrier waits for the late rank");
}

void hooks(Fixture& f) {
  require_equal<std::string_view>(
      f.group->transport(), f.world.size() == 1 ? "none" : "nccl", "transport");
  if (f.world.size() == 1) return;
  require_equal<size_t>(f.group->handles().size(), f.world.size() % 2 == 0 ? 2 : 3, "handles");
  f.group->set_transport("NVLink");
  require_equal<std::string_view>(f.group->transport(), "NVLink", "transport as set");
  f.group->set_transport("nccl");
  Records records;
  f.group->set_sink(&records);
  f.group->set_algorithms([](CommOp, int64_t n_bytes) {
    return n_bytes > 64 ? CommAlgorithm::nvls : CommAlgorithm::ring;
  });
  const Tensor x = filled(f.queue, DType::F32, {f.world.size() * 120}, f.world.rank());
  f.group->all_reduce(x);
  f.group->all_reduce(x.view().rows(0, 12));
  f.group->set_algorithms({});
  f.group->set_sink(nullptr);
  require(records.all.at(0).algorithm == CommAlgorithm::nvls &&
              records.all.at(1).algorithm == CommAlgorithm::ring,
          "algorithms as told");
  require_equal(
      records.all[0].wire_bytes, x.n_bytes() + x.n_bytes() / f.world.size(), "S + S/n over NVLS");
  f.queue.synchronize();
}

// Groups that are not all ranks, of two axes.
void neighbours_apart(Fixture& f) {
  if (f.world.size() != 4) return;
  const Mesh mesh{.tp = 2, .pp = 2};
  for (const Axis axis : {Axis::tp, Axis::pp}) {
    const auto host = f.world.make_host_group(mesh.group(f.world.rank(), axis), axis);
    const auto group = f.nccl.make_group(*host, axis == Axis::pp);
    const Tensor x = filled(f.queue, DType::F32, {3}, f.world.rank(), whole_value);
    group->all_reduce(x);
    float expected = 0;
    for (const int r : group->group().world_ranks) expected += whole_value(r, 0);
    require_equal(download(f.queue, x).as<float>()[0], expected, "sum over a group");
  }
}

void run(MpiWorld& world, const std::string& /*mode*/) {
  run_and_count_leaks(world, [](Fixture& f) {
    all_reduces(f);
    for (const bool in_place : {false, true}) {
      reduce_scatters(f, in_place);
      all_gathers(f, in_place);
    }
    all_to_alls(f);
    broadcasts(f);
    barriers(f);
    hooks(f);
    neighbours_apart(f);
  });
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) { return testbed::run_on_mpi(&testbed::run, argc, argv); }
