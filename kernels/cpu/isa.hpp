// Instruction sets the CPU kernels have versions for, chosen once at run time. Each level includes
// those before it.
#pragma once

#include <cstdint>
#include <string_view>

namespace testbed::cpu {

enum class Isa : uint8_t { portable, avx2, avx512, avx512_vnni, avx512_bf16 };
constexpr std::string_view isa_name(Isa isa) {
  constexpr std::string_view names[] = {"portable", "avx2", "avx512", "avx512_vnni", "avx512_bf16"};
  return names[static_cast<int>(isa)];
}

// The best level that processor and operating system support; TESTBED_ISA=NAME asks for a lower one
// (ConfigError if the processor lacks it or the name is unknown).
Isa choose_isa();
Isa choose_isa(std::string_view wanted, Isa best);  // the same, of a given processor; "" = its best
Isa best_isa();

}  // namespace testbed::cpu
