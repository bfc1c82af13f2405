#include "kernels/cpu/isa.hpp"

#include <cpuid.h>

#include <array>
#include <cstdlib>
#include <string>

#include "kernels/base/errors.hpp"

namespace testbed::cpu {
namespace {

constexpr std::array all_isas = {
    Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::avx512_bf16};

struct CpuidRegisters {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  // All zero if the processor has no such leaf.
  CpuidRegisters(uint32_t leaf, uint32_t subleaf) {
    if (__get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx) == 0) eax = ebx = ecx = edx = 0;
  }
};

constexpr bool has(uint32_t bits, uint32_t wanted) { return (bits & wanted) == wanted; }
constexpr uint32_t bit(int i) { return uint32_t{1} << i; }

// XCR0: the register files that the operating system saves at a context switch.
uint32_t saved_state() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Isa detect() {
  const CpuidRegisters basic(1, 0);
  const uint32_t fma_osxsave_f16c = bit(12) | bit(27) | bit(29);
  if (!has(basic.ecx, fma_osxsave_f16c)) return Isa::portable;
  const uint32_t saved = saved_state();
  const CpuidRegisters extended(7, 0);
  const uint32_t sse_avx_state = bit(1) | bit(2);
  if (!has(saved, sse_avx_state) || !has(extended.ebx, bit(5))) return Isa::portable;
  const uint32_t opmask_zmm_state = bit(5) | bit(6) | bit(7);
  const uint32_t f_dq_bw_vl = bit(16) | bit(17) | bit(30) | bit(31);
  if (!has(saved, opmask_zmm_state) || !has(extended.ebx, f_dq_bw_vl)) return Isa::avx2;
  if (!has(extended.ecx, bit(11))) return Isa::avx512;
  // Every processor with bf16 has VNNI; Cascade Lake has VNNI alone.
  const bool bf16 = has(CpuidRegisters(7, 1).eax, bit(5));
  return bf16 ? Isa::avx512_bf16 : Isa::avx512_vnni;
}

}  // namespace

Isa best_isa() {
  static const Isa isa = detect();
  return isa;
}

Isa choose_isa() {
  const char* wanted = std::getenv("TESTBED_ISA");  // NOLINT(concurrency-mt-unsafe)
  return choose_isa(wanted == nullptr ? "" : wanted, best_isa());
}

Isa choose_isa(std::string_view wanted, Isa best) {
  if (wanted.empty()) return best;
  std::string known;
  for (const Isa isa : all_isas) {
    if (isa_name(isa) != wanted) {
      known += (known.empty() ? "" : ", ") + std::string(isa_name(isa));
      continue;
    }
    if (isa > best) {
      throw ConfigError("TESTBED_ISA=" + std::string(wanted) + ": this processor's best level is " +
                        std::string(isa_name(best)));
    }
    return isa;
  }
  throw ConfigError("TESTBED_ISA=" + std::string(wanted) + ": unknown, use one of " + known);
}

}  // namespace testbed::cpu
