// ShmChannel: the messages from one rank to another of its host, in order. What fits is copied into
// a ring of shared memory when it is sent, and the sender is done. Of more, the receiver reads the
// sender's memory itself (process_vm_readv), so that it arrives while the sender computes; where
// the kernel does not allow that, it goes through the ring bit by bit, with the help of both.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

namespace testbed {

struct ShmRing {
  // All of a ring; the data follow.
  struct Head {
    alignas(128) std::atomic<uint64_t> written;  // bytes, ever
    alignas(128) std::atomic<uint64_t> read;
    alignas(128) std::atomic<uint64_t> n_fetched;  // messages read from the sender's memory
  };
  // Before each message's bytes.
  struct Frame {
    int64_t n_bytes;
    uint64_t address;  // in the sender's memory; 0: the bytes follow
  };
  // Of each of the size * size rings of a group; a multiple of 64.
  static int64_t capacity(int size);
  static int64_t ring_bytes(int size) {
    return static_cast<int64_t>(sizeof(Head)) + capacity(size);
  }

  Head* head = nullptr;
  std::byte* data = nullptr;
  uint64_t n_bytes = 0;

  ShmRing(std::byte* memory, int size)
      : head(reinterpret_cast<Head*>(memory)),
        data(memory + sizeof(Head)),
        n_bytes(static_cast<uint64_t>(capacity(size))) {}
  void copy_in(uint64_t at, const void* from, uint64_t n);
  void copy_out(uint64_t at, void* to, uint64_t n) const;
};

struct ShmMessage {
  std::byte* data;  // of a sender: only read
  int64_t n_bytes;
  int64_t n_done = 0;         // bytes copied
  bool framed = false;        // its frame has been written, or read
  uint64_t fetch_number = 0;  // of a sent message that the receiver fetches: the how many-th
  bool done = false;
};

class ShmSender {
 public:
  ShmSender(ShmRing ring, bool receiver_fetches)
      : ring_(ring), receiver_fetches_(receiver_fetches) {}
  std::shared_ptr<ShmMessage> send(const void* data, int64_t n_bytes);
  // Writes what there is room for. True if that ended messages or brought them on.
  void progress();
  bool is_done(const ShmMessage& message) const;
  bool is_idle() const { return queue_.empty(); }
  // After an error: the buffer may go. Later messages of the channel are lost.
  void abandon() { queue_.clear(); }

 private:
  uint64_t room() const;
  bool write(ShmMessage& message);

  ShmRing ring_;
  bool receiver_fetches_;
  uint64_t n_to_fetch_ = 0;
  uint64_t written_ = 0;
  std::deque<std::shared_ptr<ShmMessage>> queue_;  // not yet all written
};

class ShmReceiver {
 public:
  // sender_pid: of the process whose memory is read.
  ShmReceiver(ShmRing ring, int sender_pid) : ring_(ring), sender_pid_(sender_pid) {}
  std::shared_ptr<ShmMessage> receive(void* data, int64_t n_bytes);
  // Reads what has come. Throws CommError if the sender's memory cannot be read.
  void progress();
  bool is_idle() const { return queue_.empty(); }
  void abandon() { queue_.clear(); }
  // Bytes that were read so far.
  int64_t n_bytes_read() const { return n_bytes_read_; }

 private:
  bool read(ShmMessage& message);
  void fetch(ShmMessage& message);

  ShmRing ring_;
  int sender_pid_;
  ShmRing::Frame frame_{};
  uint64_t read_ = 0;
  int64_t n_bytes_read_ = 0;
  std::deque<std::shared_ptr<ShmMessage>> queue_;
};

// Whether this process may read another's memory: `address` there holds `expected`.
bool can_fetch(int pid, uint64_t address, uint64_t expected);

}  // namespace testbed
