#include "parallel/comm/clock_sync.hpp"

#include <algorithm>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/clock.hpp"

namespace testbed {
namespace {

constexpr int n_round_trips = 32;

void answer(ControlChannel& control, int rank) {
  for (int i = 0; i < n_round_trips; ++i) {
    control.receive(rank);
    ByteWriter stamp;
    stamp.put(now_ns());
    control.post(stamp.take(), rank);
  }
}

ClockOffset ask(ControlChannel& control) {
  ClockOffset best;
  for (int i = 0; i < n_round_trips; ++i) {
    const int64_t sent_ns = now_ns();
    control.post({}, 0);
    int64_t stamped_ns = 0;
    const Bytes reply = control.receive(0);
    const int64_t answered_ns = now_ns();
    ByteReader(reply).get(stamped_ns);
    const ClockOffset offset = offset_of_round_trip(sent_ns, stamped_ns, answered_ns);
    if (i == 0 || offset.error_ns < best.error_ns) best = offset;
  }
  return best;
}

}  // namespace

ClockOffset offset_of_round_trip(int64_t sent_ns, int64_t stamped_ns, int64_t answered_ns) {
  const int64_t half = (answered_ns - sent_ns) / 2;
  return {.offset_ns = stamped_ns - (sent_ns + half), .error_ns = half + 1};
}

ClockOffset estimate_clock_offset(ControlChannel& control, const std::vector<std::string>& hosts) {
  // One rank of each host asks, so that ranks which share a clock share its offset.
  const auto first_of_host = [&](int rank) {
    return std::find(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(rank)]) - hosts.begin();
  };
  ClockOffset mine;
  for (int rank = 1; rank < control.size(); ++rank) {
    if (first_of_host(rank) != rank) continue;
    if (control.rank() == 0) answer(control, rank);
    if (control.rank() == rank) mine = ask(control);
  }
  ByteWriter out;
  out.put(mine);
  const std::vector<Bytes> all = control.all_gather(out.take());
  ByteReader(all[static_cast<size_t>(first_of_host(control.rank()))]).get(mine);
  return mine;
}

}  // namespace testbed
