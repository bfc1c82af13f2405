// The largest value of a row of logits.
#pragma once

#include <cstdint>

namespace testbed {

struct RowMax {
  float value = 0.0F;
  int32_t index = 0;   // the lowest that holds the value
  bool finite = true;  // no NaN or infinity in the row
};

}  // namespace testbed
