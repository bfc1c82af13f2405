// Where a decode step's time went, device by device and repeat by repeat, from the timelines of a
// run: how fast weights came in, and how long a step stood still for communication.
#pragma once

#include <span>
#include <vector>

#include "parallel/mesh.hpp"
#include "runtime/measure/analysis.hpp"
#include "runtime/measure/run_record.hpp"
#include "runtime/measure/timeline.hpp"

namespace testbed {

// The median of the decode steps of one generation; 0 where there are none, as on the ranks that do
// not schedule.
double decode_step_ms(const GenerationTiming& timing);

struct DecodeSplit {
  int rank = 0;
  // [repeat] Weight bytes of the decode steps over the time of the ops that read them. (The
  // record's weights_ms is what the measured peak explains of these ops, so that bytes / weights_ms
  // never says less than the peak.) Empty if no weights were read.
  std::vector<double> weight_read_gb_s;
  // [repeat] Of a step: transfers that the device waited for after the last rank had come.
  std::vector<double> exposed_comm_ms;
};

// By rank; empty if nothing was decoded.
std::vector<DecodeSplit> decode_splits(std::span<const RankTimeline> timelines, const Mesh& mesh);

// [repeat of the timed pass] Requests that met both targets, per second of the generation. A
// request meets them by its medians over the repeats; one of a single token has no time per token
// to meet.
std::vector<double> goodput_per_s(const RunRecord& record,
                                  double ttft_target_ms,
                                  double tpot_target_ms);

}  // namespace testbed
