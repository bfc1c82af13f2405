// Timelines travel between ranks of one program on machines of one kind: plain structs, as bytes.
#include "runtime/measure/timeline.hpp"

#include <cstring>
#include <type_traits>

#include "kernels/base/check.hpp"

namespace testbed {

namespace {

class Writer {
 public:
  template <typename T>
  void value(const T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&x, sizeof x);
  }
  template <typename T>
  void list(const T& items) {
    static_assert(std::is_trivially_copyable_v<typename T::value_type>);
    value(static_cast<uint64_t>(items.size()));
    append(items.data(), items.size() * sizeof(typename T::value_type));
  }
  // Items that own memory: each is coded by itself.
  template <typename T, typename CodeItem>
  void list_of(const std::vector<T>& items, CodeItem&& code_item) {
    value(static_cast<uint64_t>(items.size()));
    for (const T& item : items) code_item(*this, item);
  }
  Bytes take() { return std::move(bytes_); }

 private:
  void append(const void* data, size_t n_bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + n_bytes);
  }
  Bytes bytes_;
};

class Reader {
 public:
  explicit Reader(const Bytes& bytes) : bytes_(bytes) {}
  template <typename T>
  void value(T& x) {
    copy(&x, sizeof x);
  }
  template <typename T>
  void list(T& items) {
    uint64_t count = 0;
    value(count);
    CHECK(count <= (bytes_.size() - at_) / sizeof(typename T::value_type));
    items.resize(count);
    copy(items.data(), count * sizeof(typename T::value_type));
  }
  template <typename T, typename CodeItem>
  void list_of(std::vector<T>& items, CodeItem&& code_item) {
    uint64_t count = 0;
    value(count);
    CHECK(count <= bytes_.size() - at_);  // an item is a byte at least
    items.resize(count);
    for (T& item : items) code_item(*this, item);
  }
  bool done() const { return at_ == bytes_.size(); }

 private:
  void copy(void* to, size_t n_bytes) {
    CHECK(n_bytes <= bytes_.size() - at_);
    if (n_bytes > 0) std::memcpy(to, bytes_.data() + at_, n_bytes);
    at_ += n_bytes;
  }
  const Bytes& bytes_;
  size_t at_ = 0;
};

template <typename Coder, typename T>
void code_all(Coder& coder, T& timeline) {
  coder.value(timeline.rank);
  coder.value(timeline.coordinates);
  coder.value(timeline.clock_offset_ns);
  coder.value(timeline.clock_error_ns);
  coder.value(timeline.stamp_error_ns);
  coder.list(timeline.host);
  coder.list(timeline.steps);
  coder.list(timeline.ops);
  coder.list(timeline.comms);
  coder.list_of(timeline.experts, [](auto& item_coder, auto& event) {
    item_coder.value(event.scope);
    item_coder.value(event.n_tokens);
    item_coder.list(event.tokens_per_expert);
    item_coder.list(event.sent_bytes);
  });
}

}  // namespace

void Timeline::resolve(const std::function<int64_t(int64_t)>& time_of) {
  for (StepEvent& step : data_.steps) {
    for (int64_t* stamp : {&step.begin_ns, &step.plan_ns, &step.work_end_ns, &step.end_ns}) {
      *stamp = time_of(*stamp);
    }
  }
  for (OpEvent& event : data_.ops) {
    event.op.begin_ns = time_of(event.op.begin_ns);
    event.op.end_ns = time_of(event.op.end_ns);
  }
  for (CommEvent& event : data_.comms) {
    CommRecord& comm = event.comm;
    for (int64_t* stamp : {&comm.post_begin_ns,
                           &comm.post_end_ns,
                           &comm.wait_begin_ns,
                           &comm.wait_end_ns,
                           &comm.arrived_ns}) {
      *stamp = time_of(*stamp);
    }
  }
}

Bytes serialise(const RankTimeline& timeline) {
  Writer writer;
  code_all(writer, timeline);
  return writer.take();
}

RankTimeline parse_timeline(const Bytes& bytes) {
  RankTimeline timeline;
  Reader reader(bytes);
  code_all(reader, timeline);
  CHECK(reader.done());
  return timeline;
}

}  // namespace testbed
