// Memory of the emulated device and host memory that it knows: ranges by address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulation {

enum class MemoryKind : uint8_t { device, pinned, registered, opened };

// An allocation ends at a page that faults. Between its end and that page there may be a few bytes
// of padding, which are checked when it is freed.
struct Range {
  MemoryKind kind = MemoryKind::device;
  int device = 0;
  std::byte* start = nullptr;
  size_t n_bytes = 0;
  std::byte* mapping = nullptr;  // pages, the last one faults
  size_t mapping_bytes = 0;
  int fd = -1;  // once it is shared
};

// The range that holds all n_bytes at p, or nullptr.
Range* find_range(const void* p, size_t n_bytes);
bool is_pageable(const void* p, size_t n_bytes);
// The allocation in whose pages, or the one after them, the address lies.
struct FaultPlace {
  const std::byte* start = nullptr;
  size_t n_bytes = 0;
};
FaultPlace place_of(const void* p);

// mapping.cpp: pages for n_bytes that end at a page that faults; of fd (else anonymous memory, all
// bits set). false if the system has no room.
bool map_range(Range& range, size_t n_bytes, int fd);
void unmap_range(const Range& range);
bool padding_is_whole(const Range& range);
// The pages become those of a file that other processes can map; false if that fails.
bool share_range(Range& range);
// Registers it with the others.
void add_range(const Range& range);
void remove_range(const Range& range);

}  // namespace emulation
