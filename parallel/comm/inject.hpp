// --inject delay: makes one rank late on purpose.
#pragma once

#include <cstdint>
#include <functional>

namespace testbed {

// For Communicator::set_before_all_reduce of the rank that is to be late: delays the 1st, the
// (every+1)-th, ... call by delay_us. Spins only where spinning takes no core from another rank.
std::function<void()> delay_hook(int64_t delay_us, int64_t every, bool may_spin);

}  // namespace testbed
