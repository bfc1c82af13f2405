// Messages of the NCCL communicator on the emulated device, its operations in replayed sections,
// and their stamps.
#include <algorithm>
#include <utility>

#include "tests/mpi/nccl_checks.hpp"

namespace testbed {
namespace {

// Everyone sends and receives at once while the compute stream works; after n shifts each has its
// own again. A send is done only when received, so on one lane this would not end.
void ring(Fixture& f, bool send_first) {
  const int size = f.world.size();
  if (size == 1) return;
  const int next = (f.world.rank() + 1) % size;
  const int previous = (f.world.rank() + size - 1) % size;
  constexpr int64_t n = 50'000;
  Tensor held = filled(f.queue, DType::F32, {n}, f.world.rank());
  Tensor coming = cuda::device_tensor(DType::F32, {n});
  const Tensor work = cuda::device_tensor(DType::F32, {n});
  const auto bytes = static_cast<size_t>(held.n_bytes());
  for (int shift = 0; shift < size; ++shift) {
    Pending sent;
    Pending received;
    if (send_first) sent = f.group->send(held, next);
    received = f.group->recv(coming, previous);
    if (!send_first) sent = f.group->send(held, next);
    // Reads what is being sent; by the time that it runs, all may have come.
    cuda::check(cudaMemcpyAsync(
                    work.data(), held.data(), bytes, cudaMemcpyDeviceToDevice, f.queue.stream()),
                "cudaMemcpyAsync");
    received.wait();
    sent.wait();
    std::swap(held, coming);
  }
  const Tensor expected(DType::F32, {n});
  fill(expected, f.world.rank(), random_value);
  require_equal_data(download(f.queue, held), expected, "ring");
  fill(expected, (f.world.rank() + 1) % size, random_value);
  require_equal_data(download(f.queue, work), expected, "what was read in the last shift");
}

// What goes round only moves on once it has come; rank 0 posts its receive first. So a send behind
// a receive on the same lane would never begin.
void token(Fixture& f) {
  const int size = f.world.size();
  if (size == 1) return;
  const int me = f.world.rank();
  const Tensor passed = filled(f.queue, DType::F32, {1000}, me);
  const Tensor came_back = cuda::device_tensor(DType::F32, {1000});
  if (me == 0) {
    Pending received = f.group->recv(came_back, size - 1);
    f.group->send(passed, 1).wait();
    received.wait();
  } else {
    f.group->recv(passed, me - 1).wait();
    f.group->send(passed, (me + 1) % size).wait();
  }
  const Tensor expected(DType::F32, {1000});
  fill(expected, 0, random_value);
  require_equal_data(download(f.queue, me == 0 ? came_back : passed), expected, "token");
}

// Messages between one pair arrive in order, of any lengths, several on their way; neither posting
// nor waiting holds the host.
void messages_in_order(Fixture& f) {
  const int size = f.world.size();
  if (size == 1) return;
  const int next = (f.world.rank() + 1) % size;
  const int previous = (f.world.rank() + size - 1) % size;
  constexpr int64_t lengths[] = {5, 2501, 0, 1};
  f.control->barrier();
  Records records;
  f.group->set_sink(&records);
  if (f.world.rank() == size - 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const int64_t begin_ns = now_ns();
  std::vector<Tensor> out;
  std::vector<Tensor> in;
  for (const int64_t n : lengths) {
    out.push_back(filled(f.queue, DType::F32, {n}, 10 * f.world.rank(), whole_value));
    in.push_back(cuda::device_tensor(DType::F32, {n}));
  }
  std::vector<Pending> pending;
  for (const Tensor& x : out) pending.push_back(f.group->send(x, next));
  for (const Tensor& x : in) pending.push_back(f.group->recv(x, previous));
  for (Pending& p : pending) p.wait();
  require(now_ns() - begin_ns < 400'000'000, "the host waits for no message");
  f.group->set_sink(nullptr);
  for (const Tensor& x : in) {
    const Tensor expected(DType::F32, x.shape());
    fill(expected, 10 * previous, whole_value);
    require_equal_data(download(f.queue, x), expected, "messages in order");
  }
  require_equal<size_t>(records.all.size(), 6, "records of messages; none of the empty ones");
  require_equal(records.all[1].sequence, records.all[0].sequence + 1, "sequence of a message");
  require_equal(records.all[1].wire_bytes, lengths[1] * 4, "wire bytes of a send");
  require_equal(records.all[4].wire_bytes, int64_t{0}, "wire bytes of a recv");
}

// One section: a sum, its parts to the next rank and from the previous one, and all of those.
void replayed_sections(Fixture& f) {
  const int size = f.world.size();
  constexpr int64_t n = 640;
  const Tensor x = cuda::device_tensor(DType::F32, {n});
  const Tensor from_previous = cuda::device_tensor(DType::F32, {1, n});
  const Tensor all = cuda::device_tensor(DType::F32, {size, n});
  const cuda::GraphStats before = f.queue.stats();
  for (int step = 0; step < 5; ++step) {
    const Tensor host(DType::F32, {n});
    fill(host, f.world.rank() + 10 * step, whole_value);
    upload(f.queue, host, x);
    f.queue.section(7, [&] {
      if (size > 1) {
        Pending received = f.group->recv(from_previous, (f.world.rank() + size - 1) % size);
        f.group->send(x, (f.world.rank() + 1) % size).wait();
        received.wait();
      }
      f.group->all_reduce(x);
      f.group->all_gather(size > 1 ? from_previous.view() : x.view(), all);
    });
    const Tensor sum = download(f.queue, x);
    const Tensor gathered = download(f.queue, all);
    for (int64_t i = 0; i < n; ++i) {
      float expected = 0;
      for (int r = 0; r < size; ++r) expected += whole_value(r + 10 * step, i);
      require_equal(sum.as<float>()[i], expected, "sum in step " + std::to_string(step));
      for (int r = 0; r < size; ++r) {
        const int source = (r + size - 1) % size;
        require_equal(gathered.as<float>()[r * n + i],
                      whole_value(source + 10 * step, i),
                      "gathered in step " + std::to_string(step));
      }
    }
  }
  require_equal(f.queue.stats().captures - before.captures, int64_t{1}, "captures");
  require_equal(f.queue.stats().replays - before.replays, int64_t{3}, "replays");
  require_equal(f.queue.stats().recaptures, int64_t{0}, "recaptures");
}

// Stamps are the device's: those of a collective enclose the wait for a late rank.
void stamps(Fixture& f) {
  if (f.world.size() == 1) return;
  const Tensor x = filled(f.queue, DType::F32, {8}, f.world.rank());
  Records records;
  f.control->barrier();
  const bool is_late = f.world.rank() == f.world.size() - 1;
  if (is_late) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  f.group->set_sink(&records);
  f.group->all_reduce(x);
  f.group->set_sink(nullptr);
  f.clock.settle();
  const CommRecord& record = records.all.at(0);
  const int64_t took_ns = f.clock.ns(record.post_end_ns) - f.clock.ns(record.post_begin_ns);
  require(took_ns >= 0 && (is_late || took_ns > 200'000'000), "an early rank's wait is stamped");
}

void lanes() {
  for (int size = 2; size <= 9; ++size) {
    for (int r = 0; r < size; ++r) {
      const int previous = (r + size - 1) % size;
      require(nccl_message_lane(size, r) < nccl_message_lanes(size), "a lane that there is");
      require(nccl_message_lane(size, r) != nccl_message_lane(size, previous),
              "what a rank sends and what it receives share no lane");
    }
  }
}

void run(MpiWorld& world, const std::string& /*mode*/) {
  lanes();
  run_and_count_leaks(world, [](Fixture& f) {
    for (const bool send_first : {false, true}) ring(f, send_first);
    token(f);
    messages_in_order(f);
    replayed_sections(f);
    stamps(f);
  });
}

}  // namespace
}  // namespace testbed

int main(int argc, char** argv) { return testbed::run_on_mpi(&testbed::run, argc, argv); }
