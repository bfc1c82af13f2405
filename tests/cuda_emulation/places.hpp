// Where in the program a stand-in was called from.
#pragma once

#include <cstdint>

namespace emulation {

// A name for the way to here: the same in every run of one executable, wherever it was loaded.
uint32_t calling_place();

}  // namespace emulation
