// Attention against the unit references in double (tests/fixtures/units/attention.json): every
// case, whole and as partial results, at every level of this processor.
#include "tests/unit/attention_units.hpp"

namespace testbed::cpu {
namespace {

void run(UnitCase& unit, TensorView out, TensorView lse, Isa isa) {
  ThreadPool pool(2, false);
  paged_attention(unit.args(out, lse), pool, isa);
}

void expect_case(const nlohmann::json& c, const References& tensors, Isa isa, int64_t block_size) {
  UnitCase unit(c, tensors, block_size);
  const auto name = c.at("name").get<std::string>();
  const std::string what = name + " " + std::string(isa_name(isa));
  const ReferenceTensor& want = tensors.at(name + ".out");
  const Tensor out(DType::F32, unit.out_shape());
  run(unit, out, {}, isa);
  ASSERT_NO_FATAL_FAILURE(expect_near(out, want, what));
  const Tensor part(DType::F32, unit.out_shape());
  const Tensor lse(DType::F32, {out.shape()[0], out.shape()[1]});
  run(unit, part, lse, isa);
  ThreadPool pool(1, false);
  finish_attention(part, lse, unit.sinks(), out, pool);
  ASSERT_NO_FATAL_FAILURE(expect_near(out, want, what + " finished"));
  if (!unit.sinks().empty()) add_sinks(lse, unit.sinks());
  ASSERT_NO_FATAL_FAILURE(expect_near(lse, tensors.at(name + ".lse"), what + " lse"));
}

TEST(CpuAttentionUnits, every_case) {
  const References tensors = read_reference_tensors(units + "attention.safetensors");
  const auto all = cases();
  EXPECT_EQ(all.size(), 23U);
  for (const auto& c : all) {
    for (const Isa isa : isas_here()) {
      for (const int64_t block_size : {1, 5, 16, 64}) {
        ASSERT_NO_FATAL_FAILURE(expect_case(c, tensors, isa, block_size));
      }
    }
  }
}

// The parts of a split by keys merge, in any order, to the case that is not split.
TEST(CpuAttentionUnits, parts_merge_to_the_whole) {
  const References tensors = read_reference_tensors(units + "attention.safetensors");
  ThreadPool pool(2, false);
  for (const auto& [split, whole] :
       {std::pair("split4.part", "causal"), std::pair("split4_window11.part", "causal_window11")}) {
    std::vector<UnitCase> parts;
    for (const auto& c : cases()) {
      if (c.at("name").get<std::string>().starts_with(split)) parts.emplace_back(c, tensors, 16);
    }
    ASSERT_EQ(parts.size(), 4U);
    for (const Isa isa : isas_here()) {
      const Tensor total(DType::F32, parts[0].out_shape());
      const Tensor part(DType::F32, total.shape());
      const Tensor total_lse(DType::F32, {total.shape()[0], total.shape()[1]});
      const Tensor lse(DType::F32, total_lse.shape());
      run(parts[2], total, total_lse, isa);
      for (const size_t i : {3U, 0U, 1U}) {
        run(parts[i], part, lse, isa);
        merge_attention(total, total_lse, part, lse, pool);
      }
      const std::string name = whole;
      ASSERT_NO_FATAL_FAILURE(expect_near(total, tensors.at(name + ".out"), name));
      ASSERT_NO_FATAL_FAILURE(expect_near(total_lse, tensors.at(name + ".lse"), name));
    }
  }
}

}  // namespace
}  // namespace testbed::cpu
