// A half-open range of indices.
#pragma once

#include <cstdint>

namespace testbed {

struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool contains(int64_t i) const { return i >= begin && i < end; }
  bool operator==(const IndexRange&) const = default;
};

}  // namespace testbed
