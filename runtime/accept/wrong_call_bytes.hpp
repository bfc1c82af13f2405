// Wrong calls as bytes, on their way to rank 0.
#pragma once

#include <vector>

#include "kernels/base/byte_stream.hpp"
#include "runtime/accept/collective_blame.hpp"

namespace testbed {

inline void put_calls(ByteWriter& out, const std::vector<WrongCall>& calls) {
  out.put(static_cast<uint64_t>(calls.size()));
  for (const WrongCall& call : calls) {
    out.put(call.call);
    out.put(call.bytes);
    out.put(call.n_elements);
    out.put(call.n_wrong);
    out.put(call.first);
  }
}

inline std::vector<WrongCall> get_calls(ByteReader& in) {
  uint64_t n = 0;
  in.get(n);
  std::vector<WrongCall> calls(n);
  for (WrongCall& call : calls) {
    in.get(call.call);
    in.get(call.bytes);
    in.get(call.n_elements);
    in.get(call.n_wrong);
    in.get(call.first);
  }
  return calls;
}

}  // namespace testbed
