// Memory accesses of attention over n tokens and one head of d elements, to leading order, in
// elements (Dao et al. 2022, theorem 2): constants left out, so only ratios of one form mean
// something.
#pragma once

#include <cstdint>

namespace testbed::plan {

// The score matrix is written and read back: n d + n^2.
double materialised_attention_accesses(int64_t n, int64_t d);
// Tiles that fit on chip: n^2 d^2 / m, with m on-chip elements, d <= m <= n d.
double flash_attention_accesses(int64_t n, int64_t d, int64_t on_chip_elements);

}  // namespace testbed::plan
