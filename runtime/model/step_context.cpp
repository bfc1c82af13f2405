#include "runtime/model/step_context.hpp"

namespace testbed {

MicrobatchRows::MicrobatchRows(const MicrobatchPlan& plan, size_t n_kv_groups, int64_t block_size)
    : slots(n_kv_groups), sequences(n_kv_groups) {
  for (const PlanSequence& sequence : plan.sequences) {
    CHECK(sequence.first_row == static_cast<int32_t>(positions.size()));
    CHECK(sequence.block_tables.size() == n_kv_groups);
    for (int32_t i = 0; i < sequence.n_rows; ++i) positions.push_back(sequence.first_position + i);
    for (size_t g = 0; g < n_kv_groups; ++g) {
      const std::vector<int32_t>& table = sequence.block_tables[g];
      for (int32_t i = 0; i < sequence.n_rows; ++i) {
        const int64_t position = sequence.first_position + i;
        const auto entry = static_cast<size_t>(position / block_size);
        CHECK(entry < table.size() && table[entry] >= 0);
        slots[g].push_back(int64_t{table[entry]} * block_size + position % block_size);
      }
      sequences[g].push_back({.first_row = sequence.first_row,
                              .n_rows = sequence.n_rows,
                              .first_position = sequence.first_position,
                              .block_table = table.data()});
    }
  }
  CHECK(n_rows() == plan.n_rows());
}

}  // namespace testbed
