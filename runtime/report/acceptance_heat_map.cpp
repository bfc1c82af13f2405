#include "runtime/report/acceptance_heat_map.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "runtime/report/acceptance_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed::acceptance_report {

namespace {

using table::Lines;

// What is within a tenth of the best is alike; from there each shade is a quarter less than the one
// before it, so that a link looks worse than its like also where others are far faster.
constexpr char shades[] = {'.', ':', '-', '=', '+', '*', 'x', '%', '#', '@'};
constexpr double alike = 0.9;
constexpr double step = 0.75;
constexpr char not_measured = '?';
constexpr char same_rank = '\\';
constexpr size_t most_with_numbers = 10;
constexpr size_t label_columns = 8;

using Cell = std::optional<double>;

struct Place {
  size_t row = 0;
  size_t column = 0;
};

class HeatMap {
 public:
  HeatMap(Lines& out, const RankMatrix& matrix, const std::vector<std::string>& hosts)
      : out_(out), matrix_(matrix), n_ranks_(matrix.values.size()) {
    while (n_cells() > most_cells) ++block_;
    for (size_t i = 1; i < n_ranks_ && block_ == 1; ++i) {
      if (i < hosts.size() && hosts[i] != hosts[i - 1]) first_of_host_.push_back(i);
    }
    find_extremes();
  }

  void add() {
    out_.wrapped("    " + printable(matrix_.title), "      ");
    if (!best_) {
      out_.add("    nothing was measured");
      return;
    }
    if (block_ > 1) out_.add("    each cell is the worst of {0} x {0} ranks", block_);
    if (n_ranks_ <= most_with_numbers) {
      add_numbers();
    } else {
      add_shades();
    }
    add_legend();
  }

 private:
  static constexpr size_t most_cells = table::max_columns - label_columns;

  size_t n_cells() const { return (n_ranks_ + block_ - 1) / block_; }

  Cell at(size_t row, size_t column) const {
    const auto& values = matrix_.values[row];
    if (column >= values.size() || !values[column] || !std::isfinite(*values[column])) {
      return std::nullopt;
    }
    return values[column];
  }
  bool worse(double a, double b) const { return matrix_.more_is_better ? a < b : a > b; }

  void find_extremes() {
    for (size_t row = 0; row < n_ranks_; ++row) {
      for (size_t column = 0; column < n_ranks_; ++column) {
        const Cell value = at(row, column);
        if (!value) {
          n_missing_ += row == column ? 0 : 1;
          continue;
        }
        if (!best_ || worse(at(best_->row, best_->column).value(), *value)) best_ = {row, column};
        if (!worst_ || worse(*value, at(worst_->row, worst_->column).value())) {
          worst_ = {row, column};
        }
      }
    }
    if (best_) best_value_ = at(best_->row, best_->column).value();
  }

  double fraction_of_best(double value) const {
    const double better = matrix_.more_is_better ? value : best_value_;
    const double reference = matrix_.more_is_better ? best_value_ : value;
    if (better == reference) return 1.0;
    return reference > 0.0 ? better / reference : 0.0;
  }
  char shade_of(double value) const {
    const double fraction = fraction_of_best(value);
    double least = alike;
    size_t shade = 0;
    for (; fraction < least && shade + 1 < std::size(shades); ++shade) least *= step;
    return shades[shade];
  }

  // The worst of a block of ranks.
  Cell cell(size_t row, size_t column) const {
    Cell found;
    for (size_t i = row * block_; i < std::min(n_ranks_, (row + 1) * block_); ++i) {
      for (size_t j = column * block_; j < std::min(n_ranks_, (column + 1) * block_); ++j) {
        const Cell value = at(i, j);
        if (value && (!found || worse(*value, *found))) found = value;
      }
    }
    return found;
  }
  char character(size_t row, size_t column) const {
    const Cell value = cell(row, column);
    if (value) return shade_of(*value);
    return row == column && block_ == 1 ? same_rank : not_measured;
  }
  bool begins_host(size_t rank) const {
    return std::find(first_of_host_.begin(), first_of_host_.end(), rank) != first_of_host_.end();
  }

  // Eight columns a cell: its number and its shade.
  void add_numbers() {
    std::string header = "    to  ";
    for (size_t column = 0; column < n_ranks_; ++column) {
      header += fmt::format("{}{:>6}  ", begins_host(column) ? "|" : "", column);
    }
    out_.add("{}", header);
    for (size_t row = 0; row < n_ranks_; ++row) {
      add_rule(row, 8);
      std::string line = fmt::format("{:>6}  ", row);
      for (size_t column = 0; column < n_ranks_; ++column) {
        const Cell value = cell(row, column);
        line += fmt::format("{}{:>6} {}",
                            begins_host(column) ? "|" : "",
                            value ? figure_number(*value) : "",
                            character(row, column));
      }
      out_.add("{}", line);
    }
  }

  // One or two columns a cell: its shade.
  void add_shades() {
    const size_t width = 2 * n_ranks_ + first_of_host_.size() <= most_cells ? 2 : 1;
    const bool bars = width * n_ranks_ + first_of_host_.size() <= most_cells;
    if (!bars) first_of_host_.clear();
    for (const size_t power : {size_t{100}, size_t{10}, size_t{1}}) {
      if (n_ranks_ > power || power == 1) add_digits(power, width);
    }
    for (size_t row = 0; row < n_cells(); ++row) {
      add_rule(row, width);
      std::string line = fmt::format("{:>6}  ", row * block_);
      for (size_t column = 0; column < n_cells(); ++column) {
        if (begins_host(column)) line += '|';
        line += character(row, column);
        line.append(width - 1, ' ');
      }
      out_.add("{}", line);
    }
  }

  // One digit of the ranks above their columns, from top to bottom.
  void add_digits(size_t power, size_t width) {
    std::string line = power == 1 ? "    to  " : "        ";
    for (size_t column = 0; column < n_cells(); ++column) {
      if (begins_host(column)) line += '|';
      const size_t rank = column * block_;
      line += rank >= power || power == 1 ? static_cast<char>('0' + rank / power % 10) : ' ';
      line.append(width - 1, ' ');
    }
    out_.add("{}", line);
  }

  void add_rule(size_t row, size_t width) {
    if (!begins_host(row)) return;
    out_.add("        {}", std::string(n_ranks_ * width + first_of_host_.size(), '-'));
  }

  void add_legend() {
    const bool more = matrix_.more_is_better;
    std::string legend = fmt::format("{} at {}:", printable(matrix_.unit), more ? "least" : "most");
    double least = alike;
    for (size_t shade = 0; shade + 1 < std::size(shades); ++shade) {
      legend += fmt::format("  {} {}",
                            shades[shade],
                            figure_number(more ? best_value_ * least : best_value_ / least));
      least *= step;
    }
    legend += fmt::format("  {} {}", shades[std::size(shades) - 1], more ? "less" : "more");
    out_.wrapped("    " + legend, "      ");
    std::string extremes = fmt::format("best {}, worst {}", extreme(*best_), extreme(*worst_));
    if (n_missing_ > 0) {
      extremes += fmt::format("; {} not measured: {}", not_measured, n_missing_);
    }
    out_.wrapped("    " + extremes, "      ");
  }
  std::string extreme(const Place& place) const {
    return fmt::format("{} {} (rank {} to {})",
                       figure_number(at(place.row, place.column).value()),
                       printable(matrix_.unit),
                       place.row,
                       place.column);
  }

  Lines& out_;
  const RankMatrix& matrix_;
  size_t n_ranks_;
  size_t block_ = 1;                   // ranks a cell, each way
  std::vector<size_t> first_of_host_;  // ranks before which a bar is
  std::optional<Place> best_;
  std::optional<Place> worst_;
  double best_value_ = 0.0;
  int n_missing_ = 0;  // off the diagonal
};

}  // namespace

void add_heat_map(table::Lines& out,
                  const RankMatrix& matrix,
                  const std::vector<std::string>& hosts) {
  HeatMap(out, matrix, hosts).add();
}

}  // namespace testbed::acceptance_report
