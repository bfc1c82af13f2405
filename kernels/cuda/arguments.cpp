#include "kernels/cuda/arguments.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/hash.hpp"

namespace testbed::cuda {
namespace {

constexpr int64_t alignment = 256;
constexpr int64_t first_chunk_bytes = int64_t{4} << 20;

Tensor byte_tensor(int64_t n_bytes, Tensor (*make)(DType, Shape)) {
  return make(DType::I32, {n_bytes / 4});
}

std::byte* at(const Tensor& buffer, int64_t offset) {
  return static_cast<std::byte*>(buffer.data()) + offset;
}

}  // namespace

// The host's copies may be written again once the device has read them.
void Arguments::rotate() {
  const auto current = static_cast<size_t>(copy_);
  check(cudaEventRecord(released_[current].get(), stream_), "cudaEventRecord");
  copy_ = (copy_ + 1) % n_copies;
  wait_(released_[static_cast<size_t>(copy_)].get());
  for (Chunk& chunk : chunks_) chunk.used = 0;
  chunk_ = 0;
  known_.clear();
}

void Arguments::begin_section(bool deferred) {
  CHECK(!in_section_);
  rotate();
  in_section_ = true;
  deferred_ = deferred;
}

void Arguments::upload() {
  for (Chunk& chunk : chunks_) {
    if (chunk.used == 0) continue;
    check(cudaMemcpyAsync(chunk.device.data(),
                          chunk.pinned[static_cast<size_t>(copy_)].data(),
                          static_cast<size_t>(chunk.used),
                          cudaMemcpyHostToDevice,
                          stream_),
          "cudaMemcpyAsync");
  }
}

void Arguments::end_section() {
  in_section_ = false;
  deferred_ = false;
  rotate();
}

// Rounded up to a power of two, so that an array that grows by a little stays where it is.
Arguments::Piece Arguments::place(int64_t n_bytes) {
  const auto room =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(n_bytes, alignment))));
  while (chunk_ < chunks_.size() &&
         chunks_[chunk_].used + room > chunks_[chunk_].device.n_bytes()) {
    ++chunk_;
  }
  if (chunk_ == chunks_.size()) {
    const int64_t last = chunks_.empty() ? 0 : chunks_.back().device.n_bytes();
    const int64_t n_chunk = std::max({first_chunk_bytes, 2 * last, room});
    Chunk chunk{.device = byte_tensor(n_chunk, &device_tensor), .pinned = {}, .used = 0};
    for (Tensor& pinned : chunk.pinned) pinned = byte_tensor(n_chunk, &pinned_tensor);
    chunks_.push_back(std::move(chunk));
  }
  const Piece piece{.chunk = chunk_, .offset = chunks_[chunk_].used, .n_bytes = n_bytes};
  chunks_[chunk_].used += room;
  return piece;
}

const void* Arguments::put_bytes(std::span<const std::byte> bytes) {
  // Outside sections nothing says when arguments are done with: a full chunk is left to the device.
  const int64_t most = 2 * static_cast<int64_t>(bytes.size()) + alignment;
  if (!in_section_ && !chunks_.empty() &&
      chunks_[chunk_].used + most > chunks_[chunk_].device.n_bytes()) {
    rotate();
  }
  const uint64_t hash = hash_bytes(bytes);
  const auto [begin, end] = known_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Chunk& chunk = chunks_[it->second.chunk];
    const std::byte* known = at(chunk.pinned[static_cast<size_t>(copy_)], it->second.offset);
    if (it->second.n_bytes == static_cast<int64_t>(bytes.size()) &&
        std::equal(bytes.begin(), bytes.end(), known)) {
      return at(chunk.device, it->second.offset);
    }
  }
  const Piece piece = place(static_cast<int64_t>(bytes.size()));
  known_.emplace(hash, piece);
  const Chunk& chunk = chunks_[piece.chunk];
  std::byte* pinned = at(chunk.pinned[static_cast<size_t>(copy_)], piece.offset);
  std::byte* device = at(chunk.device, piece.offset);
  if (!bytes.empty()) {
    std::memcpy(pinned, bytes.data(), bytes.size());
    if (!deferred_) {
      check(cudaMemcpyAsync(device, pinned, bytes.size(), cudaMemcpyHostToDevice, stream_),
            "cudaMemcpyAsync");
    }
  }
  return device;
}

}  // namespace testbed::cuda
