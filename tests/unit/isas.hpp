// The instruction-set levels that this processor can test.
#pragma once

#include <vector>

#include "kernels/cpu/isa.hpp"

namespace testbed::cpu {

inline std::vector<Isa> isas_here() {
  std::vector<Isa> isas;
  for (const Isa isa :
       {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::avx512_bf16}) {
    if (isa <= best_isa()) isas.push_back(isa);
  }
  return isas;
}

}  // namespace testbed::cpu
