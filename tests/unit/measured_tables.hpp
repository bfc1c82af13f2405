// Reads benchmarks/measured/*.csv: published measurements that the simulator is held against.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace testbed {

struct MeasuredRow {
  std::map<std::string, std::string> fields;
  const std::string& text(const std::string& column) const { return fields.at(column); }
  int64_t integer(const std::string& column) const { return std::stoll(fields.at(column)); }
  double number(const std::string& column) const { return std::stod(fields.at(column)); }
};

inline std::vector<std::string> split_csv(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
  return cells;
}

inline std::vector<MeasuredRow> read_measured(const std::string& file) {
  const std::string path = std::string(TESTBED_SOURCE_DIR) + "/benchmarks/measured/" + file;
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error("cannot read " + path);
  std::string line;
  std::getline(stream, line);
  const std::vector<std::string> columns = split_csv(line);
  std::vector<MeasuredRow> rows;
  while (std::getline(stream, line)) {
    const std::vector<std::string> cells = split_csv(line);
    MeasuredRow row;
    for (size_t i = 0; i < columns.size(); ++i) row.fields[columns[i]] = cells.at(i);
    rows.push_back(row);
  }
  return rows;
}

// Of |predicted / measured - 1|, in percent; percentiles as numpy's default interpolates.
struct ErrorSummary {
  int64_t n = 0;
  double median = 0.0;
  double p90 = 0.0;
  double bias = 0.0;  // median of predicted / measured - 1
};

inline double percentile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  const double at = fraction * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - std::floor(at)) * (values[high] - values[low]);
}

inline ErrorSummary summarise(const std::vector<double>& signed_errors) {
  std::vector<double> absolute;
  absolute.reserve(signed_errors.size());
  for (const double error : signed_errors) absolute.push_back(std::abs(error));
  return {.n = static_cast<int64_t>(signed_errors.size()),
          .median = 100.0 * percentile(absolute, 0.5),
          .p90 = 100.0 * percentile(absolute, 0.9),
          .bias = 100.0 * percentile(signed_errors, 0.5)};
}

}  // namespace testbed
