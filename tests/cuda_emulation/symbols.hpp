// What the program's symbol table says of a kernel.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace emulation {

struct KernelSymbols {
  std::string name;  // as in the source; its address in a stripped program
  std::vector<std::span<std::byte>>
      shared;               // its __shared__ variables: static ones of its function
  size_t shared_bytes = 0;  // of them
};
// Lives as long as the program.
const KernelSymbols& symbols_of(const void* kernel);

}  // namespace emulation
