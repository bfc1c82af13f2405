// A file mapped read-only. Pages are read when touched, so a rank pays only for its slices.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace testbed {

class MappedFile {
 public:
  // Throws WeightsError naming the file: missing, not a regular file, unreadable. An empty file
  // maps to an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, n_bytes_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t n_bytes_ = 0;
};

}  // namespace testbed
