// A record read back from its JSON, reduced to what two of them are compared by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace testbed {

// One number of a record, and how far it went from repeat to repeat.
struct ComparedFigure {
  std::string name;
  std::string unit;
  double value = 0.0;
  double min = 0.0;
  double max = 0.0;
  bool spread_known = false;  // exact, simulated, or of two repeats and more
};

// Figures and texts of one kind: timing, a phase, a collective of a phase.
struct FigureGroup {
  std::string title;
  std::vector<std::pair<std::string, std::string>> texts;  // name, value
  std::vector<ComparedFigure> figures;
};

struct ComparedRecord {
  std::string path;
  bool simulated = false;
  std::vector<std::string> labels;
  std::vector<FigureGroup> groups;  // "run" first; titles are unique
};

// Throws ConfigError naming the file, and the field or the line, if it is no record.
ComparedRecord read_record(const std::string& path);

}  // namespace testbed
