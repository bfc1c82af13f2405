// The threads of a block as kernels see them: fibres that meet at barriers and in warps. Included
// by the emulated device language only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace emulation {

// std::source_location, which clang 14 lacks.
class Where {
 public:
  static constexpr Where current(const char* file_name = __builtin_FILE(),
                                 const char* function_name = __builtin_FUNCTION(),
                                 unsigned line = __builtin_LINE()) {
    Where where;
    where.file_name_ = file_name;
    where.function_name_ = function_name;
    where.line_ = line;
    return where;
  }
  const char* file_name() const { return file_name_; }
  const char* function_name() const { return function_name_; }
  unsigned line() const { return line_; }

 private:
  const char* file_name_ = "";
  const char* function_name_ = "";
  unsigned line_ = 0;
};

// Of the thread that is running: its index in the block, x fastest.
extern unsigned current_thread;
inline unsigned current_lane() { return current_thread % 32; }

// Until all threads of the block that have not ended are here, from the same line. Returns how many
// of them came with a true predicate.
int barrier(bool predicate, int* n_threads, const Where& where);
// Other threads may run, and other processes (a thread that polls).
void pause_thread();
// The launch fails with this thread, its place and the text; does not return.
[[noreturn]] void fail_thread(const char* text, const Where& where);
void* dynamic_shared_memory();

// One collective of a warp's lanes: what each brought, or what `finish` made of it.
struct Meeting {
  static constexpr size_t slot_bytes = 64;
  const char* name = nullptr;
  Where where;
  unsigned mask = 0;
  unsigned arrived = 0;
  unsigned unread = 0;
  struct alignas(16) Slot {
    std::array<std::byte, slot_bytes> bytes;
  };
  std::array<Slot, 32> slots;

  template <typename T>
  T get(unsigned lane) const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= slot_bytes);
    T value;
    std::memcpy(&value, slots[lane].bytes.data(), sizeof value);
    return value;
  }
  template <typename T>
  void put(unsigned lane, const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= slot_bytes);
    std::memcpy(slots[lane].bytes.data(), &value, sizeof value);
  }
};
// Waits until all lanes of mask are here, from the same line; `finish` (may be null) is run once,
// by the last of them. leave() when its slots have been read.
Meeting& meet(unsigned mask,
              const char* name,
              const void* bytes,
              size_t n_bytes,
              void (*finish)(Meeting&),
              const Where& where);
void leave(Meeting& meeting);

// meet, and a lane's own slot.
template <typename Out, typename In>
Out exchange(
    unsigned mask, const char* name, const In& in, void (*finish)(Meeting&), const Where& where) {
  Meeting& meeting = meet(mask, name, &in, sizeof in, finish, where);
  const Out out = meeting.get<Out>(current_lane());
  leave(meeting);
  return out;
}
// What lane `from` brought; this lane's own if own. A lane outside the mask has nothing: NaN.
template <typename T>
T shuffle(
    unsigned mask, const char* name, const T& value, unsigned from, bool own, const Where& where) {
  static_assert(std::is_arithmetic_v<T>, "shuffles move one register, or two");
  Meeting& meeting = meet(mask, name, &value, sizeof value, nullptr, where);
  T out;
  std::memset(&out, 0xff, sizeof out);
  const unsigned lane = own ? current_lane() : from;
  if (((mask >> lane) & 1U) != 0) out = meeting.get<T>(lane);
  leave(meeting);
  return out;
}

// cp.async of the running thread: done at once, or as late as is allowed, by order.
void copy_async(void* shared, const void* global, size_t n_bytes, bool valid, const Where& where);
void commit_copies();
void wait_for_copies(unsigned n_pending);

}  // namespace emulation
