#include "runtime/report/sweep_chart.hpp"

#include <cmath>
#include <utility>

namespace testbed::table {

std::string step_bar(const Shares& s, double columns) {
  const std::pair<char, double> parts[] = {{'W', s.weights},
                                           {'K', s.kv},
                                           {'#', s.interconnect},
                                           {'C', s.compute},
                                           {'w', s.wait},
                                           {'b', s.bubble},
                                           {'o', s.overhead}};
  std::string bar;
  double edge = 0.0;
  for (const auto& [letter, share] : parts) {
    edge += share * columns;
    const auto end = static_cast<size_t>(std::lround(edge));
    if (end > bar.size()) bar.append(end - bar.size(), letter);
  }
  return bar;
}

}  // namespace testbed::table
