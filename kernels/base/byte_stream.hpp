// Plain data to bytes and back: trivially copyable values, and vectors and strings of them, length
// first. For messages between processes of one job on like machines; not a file format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/base/check.hpp"

namespace testbed {

class ByteWriter {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof(T));
  }
  template <typename T>
  void put(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(static_cast<uint64_t>(values.size()));
    append(values.data(), values.size() * sizeof(T));
  }
  void put(const std::string& text) {
    put(static_cast<uint64_t>(text.size()));
    append(text.data(), text.size());
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  // Not insert(), of which g++ 12 warns at -O3 where it knows the vector to be empty.
  void append(const void* data, size_t n_bytes) {
    const size_t begin = bytes_.size();
    bytes_.resize(begin + n_bytes);
    if (n_bytes > 0) std::memcpy(bytes_.data() + begin, data, n_bytes);
  }
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(const std::vector<std::byte>& bytes) : bytes_(bytes) {}
  template <typename T>
  void get(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    copy(&value, sizeof(T));
  }
  template <typename T>
  void get(std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    values.resize(length(sizeof(T)));
    copy(values.data(), values.size() * sizeof(T));
  }
  void get(std::string& text) {
    text.resize(length(1));
    copy(text.data(), text.size());
  }
  bool at_end() const { return next_ == bytes_.size(); }

 private:
  size_t length(size_t element_bytes) {
    uint64_t n = 0;
    get(n);
    CHECK(n <= (bytes_.size() - next_) / element_bytes);
    return static_cast<size_t>(n);
  }
  void copy(void* target, size_t n_bytes) {
    CHECK(n_bytes <= bytes_.size() - next_);
    if (n_bytes > 0) std::memcpy(target, bytes_.data() + next_, n_bytes);
    next_ += n_bytes;
  }
  const std::vector<std::byte>& bytes_;
  size_t next_ = 0;
};

inline std::vector<std::byte> pack_text(const std::string& text) {
  ByteWriter out;
  out.put(text);
  return out.take();
}
inline std::string unpack_text(const std::vector<std::byte>& bytes) {
  std::string text;
  ByteReader(bytes).get(text);
  return text;
}

}  // namespace testbed
