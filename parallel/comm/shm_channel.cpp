#include "parallel/comm/shm_channel.hpp"

#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "kernels/base/check.hpp"
#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

constexpr uint64_t frame_bytes = sizeof(ShmRing::Frame);

// Frames never wrap: all that is in the ring is a multiple of their size.
uint64_t padded(uint64_t n) { return (n + frame_bytes - 1) / frame_bytes * frame_bytes; }

// Bytes of another process; the number read, or -1 with errno.
ssize_t read_memory(int pid, uint64_t from, void* to, uint64_t n) {
  const iovec local{.iov_base = to, .iov_len = n};
  const iovec remote{.iov_base = reinterpret_cast<void*>(from),  // NOLINT: an address there
                     .iov_len = n};
  return process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

}  // namespace

// All rings of a group take 8 MiB at most, unless it has very many ranks.
int64_t ShmRing::capacity(int size) {
  constexpr int64_t most = int64_t{1} << 20;
  constexpr int64_t least = int64_t{4} << 10;
  constexpr int64_t of_all = int64_t{8} << 20;
  const auto share = static_cast<uint64_t>(of_all / (int64_t{size} * size));
  return std::clamp(static_cast<int64_t>(std::bit_floor(share)), least, most);
}

void ShmRing::copy_in(uint64_t at, const void* from, uint64_t n) {
  const uint64_t begin = at % n_bytes;
  const uint64_t first = std::min(n, n_bytes - begin);
  std::memcpy(data + begin, from, first);
  std::memcpy(data, static_cast<const std::byte*>(from) + first, n - first);
}

void ShmRing::copy_out(uint64_t at, void* to, uint64_t n) const {
  const uint64_t begin = at % n_bytes;
  const uint64_t first = std::min(n, n_bytes - begin);
  std::memcpy(to, data + begin, first);
  std::memcpy(static_cast<std::byte*>(to) + first, data, n - first);
}

std::shared_ptr<ShmMessage> ShmSender::send(const void* data, int64_t n_bytes) {
  auto message = std::make_shared<ShmMessage>(
      ShmMessage{.data = static_cast<std::byte*>(const_cast<void*>(data)), .n_bytes = n_bytes});
  queue_.push_back(message);
  progress();
  return message;
}

uint64_t ShmSender::room() const {
  return ring_.n_bytes - (written_ - ring_.head->read.load(std::memory_order_acquire));
}

void ShmSender::progress() {
  while (!queue_.empty() && write(*queue_.front())) queue_.pop_front();
}

// True when there is no more of it to write.
bool ShmSender::write(ShmMessage& message) {
  const bool fits = message.n_bytes <= static_cast<int64_t>(ring_.n_bytes / 2);
  const bool fetched = receiver_fetches_ && !fits;
  if (!message.framed) {
    if (room() < frame_bytes) return false;
    const ShmRing::Frame frame{.n_bytes = message.n_bytes,
                               .address = fetched ? reinterpret_cast<uint64_t>(message.data) : 0};
    ring_.copy_in(written_, &frame, frame_bytes);
    written_ += frame_bytes;
    message.framed = true;
    if (fetched) message.fetch_number = ++n_to_fetch_;
  }
  if (!fetched) {
    const uint64_t left = static_cast<uint64_t>(message.n_bytes - message.n_done);
    const uint64_t n = std::min(left, room());
    ring_.copy_in(written_, message.data + message.n_done, n);
    message.n_done += static_cast<int64_t>(n);
    message.done = n == left;
    // Unless it is the message's last, n is all of the room: a whole number of frames.
    written_ += padded(n);
  }
  ring_.head->written.store(written_, std::memory_order_release);
  return fetched || message.done;
}

bool ShmSender::is_done(const ShmMessage& message) const {
  if (message.fetch_number == 0) return message.done;
  return ring_.head->n_fetched.load(std::memory_order_acquire) >= message.fetch_number;
}

std::shared_ptr<ShmMessage> ShmReceiver::receive(void* data, int64_t n_bytes) {
  auto message = std::make_shared<ShmMessage>(
      ShmMessage{.data = static_cast<std::byte*>(data), .n_bytes = n_bytes});
  queue_.push_back(message);
  return message;
}

void ShmReceiver::progress() {
  while (!queue_.empty() && read(*queue_.front())) queue_.pop_front();
}

// True when it is all here.
bool ShmReceiver::read(ShmMessage& message) {
  uint64_t there = ring_.head->written.load(std::memory_order_acquire) - read_;
  if (!message.framed) {
    if (there < frame_bytes) return false;
    ring_.copy_out(read_, &frame_, frame_bytes);
    CHECK(frame_.n_bytes == message.n_bytes);
    message.framed = true;
    read_ += frame_bytes;
    there -= frame_bytes;
  }
  if (frame_.address != 0) {
    ring_.head->read.store(read_, std::memory_order_release);
    fetch(message);
    return true;
  }
  const uint64_t n = std::min(there, static_cast<uint64_t>(message.n_bytes - message.n_done));
  ring_.copy_out(read_, message.data + message.n_done, n);
  message.n_done += static_cast<int64_t>(n);
  message.done = message.n_done == message.n_bytes;
  n_bytes_read_ += static_cast<int64_t>(n);
  read_ += padded(n);
  ring_.head->read.store(read_, std::memory_order_release);
  return message.done;
}

void ShmReceiver::fetch(ShmMessage& message) {
  while (message.n_done < message.n_bytes) {
    const ssize_t n = read_memory(sender_pid_,
                                  frame_.address + static_cast<uint64_t>(message.n_done),
                                  message.data + message.n_done,
                                  static_cast<uint64_t>(message.n_bytes - message.n_done));
    if (n <= 0) {
      throw CommError(fmt::format("process_vm_readv of a message from process {}: {}",
                                  sender_pid_,
                                  n < 0 ? std::strerror(errno) : "nothing"));
    }
    message.n_done += n;
  }
  n_bytes_read_ += message.n_bytes;
  message.done = true;
  ring_.head->n_fetched.fetch_add(1, std::memory_order_release);
}

bool can_fetch(int pid, uint64_t address, uint64_t expected) {
  uint64_t value = 0;
  return read_memory(pid, address, &value, sizeof value) == ssize_t{sizeof value} &&
         value == expected;
}

}  // namespace testbed
