#include "tests/cuda_emulation/places.hpp"

#include <execinfo.h>

#include <array>
#include <cstddef>

extern "C" const char __executable_start;
extern "C" const char etext;

namespace emulation {

uint32_t calling_place() {
  // Beyond the stand-in's own and the program's wrappers: who asked for memory counts, not only
  // that somebody did.
  constexpr int n_deepest = 9;
  std::array<void*, 2 * n_deepest> frames{};
  const int n = backtrace(frames.data(), static_cast<int>(frames.size()));
  uint32_t hash = 2166136261U;  // FNV-1a, of offsets in the executable
  int n_ours = 0;
  for (int i = 0; i < n && n_ours < n_deepest; ++i) {
    const auto* at = static_cast<const char*>(frames[static_cast<size_t>(i)]);
    if (at < &__executable_start || at >= &etext) continue;
    ++n_ours;
    hash = (hash ^ static_cast<uint32_t>(at - &__executable_start)) * 16777619U;
  }
  return hash;
}

}  // namespace emulation
