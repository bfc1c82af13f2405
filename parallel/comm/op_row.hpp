// OpRow: what one rank is at, where the other ranks of its host can see it (op_board.hpp). Written
// by a few plain stores and a coarse clock at each operation; a reader may see two of its fields
// from different operations, which it can only do of a rank that is getting on.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <optional>

namespace testbed {

struct alignas(64) OpRow {
  // Milliseconds' resolution, and no serialising instruction.
  static int64_t coarse_now_ns() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  }
  struct Operation {
    uint8_t op = 0;    // CommOp
    uint8_t axis = 0;  // Axis
    bool host = false;
    int32_t peer = -1;  // world rank; of messages
    int32_t group_id = 0;
    int32_t group_size = 1;
    int64_t sequence = 0;
    bool operator==(const Operation&) const = default;
  };
  // The one word of what an operation is, and the other of its group.
  static uint64_t kind_of(const Operation& operation) {
    return static_cast<uint64_t>(operation.op) | static_cast<uint64_t>(operation.axis) << 8U |
           static_cast<uint64_t>(operation.host) << 16U |
           static_cast<uint64_t>(static_cast<uint32_t>(operation.peer)) << 32U;
  }
  static uint64_t group_of(const Operation& operation) {
    return static_cast<uint64_t>(static_cast<uint32_t>(operation.group_id)) |
           static_cast<uint64_t>(static_cast<uint32_t>(operation.group_size)) << 32U;
  }
  static Operation operation_of(uint64_t kind, uint64_t group, int64_t sequence) {
    return {.op = static_cast<uint8_t>(kind),
            .axis = static_cast<uint8_t>(kind >> 8U),
            .host = (kind >> 16U & 1U) != 0,
            .peer = static_cast<int32_t>(kind >> 32U),
            .group_id = static_cast<int32_t>(group),
            .group_size = static_cast<int32_t>(group >> 32U),
            .sequence = sequence};
  }

  void enter(const Operation& operation) {
    constexpr auto relaxed = std::memory_order_relaxed;
    kind.store(kind_of(operation), relaxed);
    group.store(group_of(operation), relaxed);
    sequence.store(operation.sequence, relaxed);
    entered_ns.store(coarse_now_ns(), relaxed);
    entered.store(entered.load(relaxed) + 1, std::memory_order_release);
  }
  void leave() {
    constexpr auto relaxed = std::memory_order_relaxed;
    left_ns.store(coarse_now_ns(), relaxed);
    left.store(entered.load(relaxed), std::memory_order_release);
  }
  Operation operation() const {
    constexpr auto relaxed = std::memory_order_relaxed;
    return operation_of(kind.load(relaxed), group.load(relaxed), sequence.load(relaxed));
  }
  // The last message that it has given away, whether it has come or not.
  void gave(const Operation& message) {
    constexpr auto relaxed = std::memory_order_relaxed;
    given_kind.store(kind_of(message), relaxed);
    given_group.store(group_of(message), relaxed);
    given_sequence.store(message.sequence, relaxed);
  }
  // A new group counts its messages from 0: those of older ones are not to be taken for them.
  void has_given_none() { given_kind.store(0, std::memory_order_relaxed); }
  std::optional<Operation> given() const {
    constexpr auto relaxed = std::memory_order_relaxed;
    const uint64_t k = given_kind.load(relaxed);
    if (k == 0) return std::nullopt;
    return operation_of(k, given_group.load(relaxed), given_sequence.load(relaxed));
  }

  std::atomic<int64_t> entered;  // operations
  std::atomic<int64_t> left;
  std::atomic<int64_t> entered_ns;
  std::atomic<int64_t> left_ns;
  std::atomic<uint64_t> kind;
  std::atomic<uint64_t> group;
  std::atomic<int64_t> sequence;
  std::atomic<int64_t> pid;
  std::atomic<uint64_t> given_kind;  // never 0 of a message: CommOp::send is not
  std::atomic<uint64_t> given_group;
  std::atomic<int64_t> given_sequence;
};
static_assert(sizeof(OpRow) == 128);

}  // namespace testbed
