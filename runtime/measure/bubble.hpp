// The ideal idle share of a pipeline stage.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace testbed {

// A flushed pipeline of P = n_stages, M microbatches, v virtual stages per device:
//   (P-1) / (vM + P-1)                  if v = 1 or P divides M,
//   1 - vM / ((v-1)P + P-1 + M)         if M < P,
// and no closed form otherwise (nullopt).
std::optional<double> flushed_bubble(int64_t n_stages,
                                     int64_t n_microbatches,
                                     int64_t virtual_stages);

// Not flushed (decode): a microbatch's next token starts when its own returns: max(0, 1 - M/P).
double decode_bubble(int64_t n_stages, int64_t n_microbatches);

// The same for stages that are not equal, from what each was busy in a step (v = 1): what the
// formula would be for them. With t the busy time of a stage per microbatch a flushed step takes
// sum(t) + (M-1) max(t), and one that is not flushed max(M max(t), sum(t)).
double bubble_of_stages(std::span<const double> busy, int64_t n_microbatches, bool flushed);

}  // namespace testbed
