// Names of the probe's record, as INTERFACE.md spells them.
#pragma once

#include <string_view>

#include "runtime/probe/probe_record.hpp"

namespace testbed {

constexpr std::string_view probe_op_name(CommOp op) {
  return op == CommOp::send ? "send_recv" : comm_op_name(op);
}

constexpr std::string_view phase_name(AttentionPhase phase) {
  return phase == AttentionPhase::decode ? "decode" : "prefill";
}

}  // namespace testbed
