#include "runtime/measure/bubble.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

// The idle share of P devices that run M microbatches over v*P virtual stages of one unit each, by
// direct scheduling: each device takes, of what is ready, the pass of the lowest group of P
// microbatches, then chunk, then microbatch (Megatron's interleaved order).
double scheduled_bubble(int n_stages, int n_microbatches, int virtual_stages) {
  const int n_virtual = n_stages * virtual_stages;
  std::vector<std::vector<int>> done(static_cast<size_t>(n_microbatches),
                                     std::vector<int>(static_cast<size_t>(n_virtual), -1));
  int remaining = n_microbatches * n_virtual;
  int time = 0;
  for (; remaining > 0; ++time) {
    for (int device = 0; device < n_stages; ++device) {
      int* chosen = nullptr;
      for (int group = 0; group * n_stages < n_microbatches && chosen == nullptr; ++group) {
        for (int chunk = 0; chunk < virtual_stages && chosen == nullptr; ++chunk) {
          for (int m = group * n_stages; m < std::min(n_microbatches, (group + 1) * n_stages);
               ++m) {
            auto& mine = done[static_cast<size_t>(m)];
            const auto stage = static_cast<size_t>(chunk * n_stages + device);
            const bool ready = stage == 0 || (mine[stage - 1] >= 0 && mine[stage - 1] < time);
            if (mine[stage] < 0 && ready) {
              chosen = &mine[stage];
              break;
            }
          }
        }
      }
      if (chosen == nullptr) continue;
      *chosen = time;
      --remaining;
    }
  }
  return 1.0 - static_cast<double>(n_microbatches * virtual_stages) / time;
}

TEST(Bubble, closed_form_is_what_a_schedule_does) {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int v : {1, 2, 3}) {
      for (int m = 1; m <= 2 * p; ++m) {
        const auto formula = flushed_bubble(p, m, v);
        if (!formula) continue;
        EXPECT_NEAR(*formula, scheduled_bubble(p, m, v), 1e-12)
            << "P " << p << " M " << m << " v " << v;
      }
    }
  }
}

TEST(Bubble, D7_microbatches_fewer_than_stages) {
  EXPECT_DOUBLE_EQ(*flushed_bubble(4, 1, 1), 0.75);
  EXPECT_DOUBLE_EQ(*flushed_bubble(4, 1, 2), 1.0 - 2.0 / 8.0);
  EXPECT_DOUBLE_EQ(decode_bubble(4, 1), 0.75);
}

TEST(Bubble, interleaving_an_odd_number_has_no_closed_form) {
  EXPECT_FALSE(flushed_bubble(4, 6, 2).has_value());
  EXPECT_TRUE(flushed_bubble(4, 6, 1).has_value());
  EXPECT_DOUBLE_EQ(*flushed_bubble(4, 8, 2), 3.0 / 19.0);
}

TEST(Bubble, decode_is_not_flushed) {
  EXPECT_DOUBLE_EQ(decode_bubble(4, 2), 0.5);
  EXPECT_EQ(decode_bubble(4, 4), 0.0);
  EXPECT_EQ(decode_bubble(4, 9), 0.0);
  EXPECT_EQ(decode_bubble(1, 1), 0.0);
  EXPECT_THROW(decode_bubble(0, 1), InternalError);
}

TEST(Bubble, unequal_stages_wait_for_the_longest) {
  const std::vector<double> equal = {6.0, 6.0, 6.0};
  EXPECT_DOUBLE_EQ(bubble_of_stages(equal, 4, true), *flushed_bubble(3, 4, 1));
  EXPECT_DOUBLE_EQ(bubble_of_stages(equal, 2, false), decode_bubble(3, 2));
  const std::vector<double> uneven = {8.0, 2.0};  // per microbatch of four: 2 and 0.5
  EXPECT_DOUBLE_EQ(bubble_of_stages(uneven, 4, true), 1.0 - 10.0 / (2 * 8.5));
  EXPECT_DOUBLE_EQ(bubble_of_stages(uneven, 4, false), 1.0 - 10.0 / (2 * 8.0));
  EXPECT_DOUBLE_EQ(bubble_of_stages(uneven, 1, false), 0.5);
}

}  // namespace
}  // namespace testbed
