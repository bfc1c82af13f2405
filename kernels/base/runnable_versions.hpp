// Versions of one function that were compiled for several instruction sets by target attributes.
#pragma once

#include <vector>

namespace testbed {

// Those that this processor can run, the one to take first. avx512: of the foundation, byte and
// word, vector length, doubleword and quadword parts.
template <typename Function>
std::vector<Function> runnable_versions(Function avx512, Function avx2, Function portable) {
  std::vector<Function> versions;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    versions.push_back(avx512);
  }
  if (__builtin_cpu_supports("avx2")) versions.push_back(avx2);
  versions.push_back(portable);
  return versions;
}

}  // namespace testbed
