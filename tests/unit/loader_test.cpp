// Loading: what a rank holds of a quantised matrix is its slice of the whole matrix quantised at
// once, whatever the split; and its bytes are the planned ones, for every format.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "kernels/cpu/cpu_device.hpp"
#include "parallel/shard.hpp"
#include "runtime/config/split.hpp"
#include "runtime/model/shard_reader.hpp"
#include "runtime/weights/tensor_names.hpp"
#include "tests/unit/weights_builders.hpp"
#include "tests/unit/weights_families.hpp"

namespace testbed {
namespace {

using namespace weight_formats;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Those that quantise() makes; others come from files.
constexpr auto quantisable = std::span(weight_formats::quantised).first<8>();

CpuDevice f32_device(int n_threads) {
  return {std::make_shared<cpu::ThreadPool>(n_threads, false), cpu::Isa::portable, DType::F32};
}

// 12 heads of 64: 768 columns of o_proj; d_ff is 5 groups of 128 and 40 columns, of 32 the last has
// 8. Most shares are no multiple of a panel of rows.
ModelConfig model_config() {
  ModelConfig c;
  c.name = "toy";
  c.n_layers = 1;
  c.d_model = 200;
  c.n_heads = 12;
  c.n_kv_heads = 12;
  c.head_dim = 64;
  c.d_ff = 680;
  c.vocab_size = 333;
  c.layer_windows = {0};
  return c;
}

using Values = std::vector<float>;

// Of every row, through the device: f32, so that they are what the format stands for.
Values rows_of(Device& device, const WeightMatrix& weight) {
  std::vector<int32_t> ids(static_cast<size_t>(weight.n_rows()));
  std::iota(ids.begin(), ids.end(), 0);
  const Tensor out(DType::F32, {weight.n_rows(), weight.n_cols()});
  device.embed(ids, weight, 0, out);
  return {out.as<float>(), out.as<float>() + out.n_elements()};
}

// The whole tensor quantised at once, its slice dequantised.
Values expected_of(const WeightSource& source, const Slice& slice, const WeightFormat& format) {
  const Tensor all = test::read_all(source, slice.name, DType::F32);
  const int64_t n_rows = all.shape()[0];
  const int64_t n_cols = all.shape()[1];
  const QuantisedTensor codes(format, n_rows, n_cols);
  quantise(all, codes, largest_magnitude(all));
  const Tensor back(DType::F32, {n_rows, n_cols});
  dequantise(codes, back);
  Values out;
  out.reserve(static_cast<size_t>(slice.rows.size() * slice.cols.size()));
  for (int64_t row = slice.rows.begin; row < slice.rows.end; ++row) {
    for (int64_t col = slice.cols.begin; col < slice.cols.end; ++col) {
      out.push_back(back.as<float>()[row * n_cols + col]);
    }
  }
  return out;
}

class LoaderFormats : public testing::TestWithParam<Named> {};

TEST_P(LoaderFormats, shards_are_slices_of_the_whole) {
  const WeightFormat format = GetParam().format;
  const ModelConfig config = model_config();
  const auto source = make_random_weights(config, 3);
  CpuDevice device = f32_device(2);
  const std::string layer = layer_tensor_name(0, "");
  const ResidentWeights wanted{.quantised = format};
  for (const int tp : {1, 2, 3, 4}) {
    for (int rank = 0; rank < tp; ++rank) {
      SCOPED_TRACE(fmt::format("tp {} rank {}", tp, rank));
      ShardReader reader(&device, *source, wanted, DType::F32, nullptr, 0);
      const std::string down = layer + "mlp.down_proj.weight";
      const IndexRange ff = split_range(config.d_ff, tp, rank, reader.column_granularity(down));
      const IndexRange vocab = vocabulary_shard(config.vocab_size, tp, rank);
      const IndexRange all{0, config.d_model};
      for (const Slice& slice : {Slice{down, all, ff},
                                 Slice{layer + "mlp.up_proj.weight", ff, all},
                                 Slice{std::string(embedding_name), vocab, all}}) {
        EXPECT_EQ(rows_of(device, reader.matrix({slice})), expected_of(*source, slice, format))
            << slice.name;
      }
    }
  }
}

TEST_P(LoaderFormats, stacked_parts_keep_their_own_scales) {
  const WeightFormat format = GetParam().format;
  const ModelConfig config = model_config();
  const auto source = make_random_weights(config, 3);
  CpuDevice device = f32_device(3);
  ShardReader reader(&device, *source, {.quantised = format}, DType::F32, nullptr, 0);
  const std::string mlp = layer_tensor_name(0, "mlp.");
  const Slice gate{mlp + "gate_proj.weight", {170, 509}, {0, 200}};
  const Slice up{mlp + "up_proj.weight", {170, 509}, {0, 200}};
  const WeightMatrix both = reader.matrix({gate, up});
  Values expected = expected_of(*source, gate, format);
  for (const float x : expected_of(*source, up, format)) expected.push_back(x);
  EXPECT_EQ(rows_of(device, both), expected);
  EXPECT_EQ(both.format(), format);
  EXPECT_EQ(reader.bytes(), format.n_bytes(2 * 339, 200));
  EXPECT_THAT(reader.notes(),
              ElementsAre(fmt::format("weights converted: bf16 -> {}", format_name(format))));
}

INSTANTIATE_TEST_SUITE_P(Formats, LoaderFormats, testing::ValuesIn(quantisable), [](const auto& p) {
  std::string name(p.param.name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Loader, D4_columns_that_cut_a_group_are_refused_by_name) {
  const auto source = make_random_weights(model_config(), 3);
  const std::string down = layer_tensor_name(0, "mlp.down_proj.weight");
  const auto error = [&](const WeightFormat& format, IndexRange cols) {
    ShardReader reader(nullptr, *source, {.quantised = format}, DType::F32, nullptr, 0);
    return test::weights_error([&] { reader.matrix({{down, {0, 200}, cols}}); });
  };
  EXPECT_EQ(error(int8_g32, {32, 680}), "");  // the last group is short
  EXPECT_EQ(error(int8_row, {7, 9}), "");
  EXPECT_THAT(error(int8_g32, {16, 680}),
              HasSubstr("tensor 'model.layers.0.mlp.down_proj.weight': columns [16, 680) do not "
                        "start and end on a group of 32 of int8-g32"));
  EXPECT_THAT(error(fp8_block128, {0, 160}), HasSubstr("a group of 128 of fp8-block128"));
}

// Weights that the model holds plain: none of these has a scale.
TEST(Loader, gates_and_latent_expansions_are_never_quantised) {
  const auto bytes_of = [](const ModelConfig& config, const WeightFormat& format) {
    const auto source = make_random_weights(config, 0);
    return planned_weights_bytes(*source, config, {}, {.quantised = format}, DType::BF16);
  };
  const ModelConfig config = test::deepseek_config("deepseek_v3");
  const auto source = make_random_weights(config, 0);
  int64_t plain = 0;
  int64_t codes = 0;
  int64_t rows = 0;
  for (const TensorSpec& spec : required_tensors(config)) {
    const bool gate = spec.name.ends_with("mlp.gate.weight");
    const bool kv_b = spec.name.ends_with("kv_b_proj.weight");
    if (spec.kind != TensorKind::matrix) {
      plain += dtype_bytes(DType::F32, spec.shape.n_elements());
    } else if (gate || kv_b) {
      // kv_b_proj once whole, once by heads in the absorbed forms.
      plain += dtype_bytes(DType::BF16, spec.shape.n_elements()) * (kv_b ? 2 : 1);
    } else {
      codes += spec.shape.n_elements();
      rows += spec.shape[0];
    }
  }
  EXPECT_EQ(bytes_of(config, int8_row), plain + codes + rows * 4);
  CpuDevice device = f32_device(1);
  const Model model =
      load_model(device, *source, config, {}, {.quantised = fp8_row}, [](int64_t, int64_t) {});
  EXPECT_THAT(model.notes, Contains("not quantised: router gates, bf16"));
  EXPECT_THAT(model.notes, Contains("not quantised: kv_b_proj, bf16"));
  EXPECT_THAT(model.notes, Contains("weights converted: bf16 -> fp8-row"));
}

// Random weights that claim to be stored in dtypes of their own, by the ends of their names.
class StoredAs : public WeightSource {
 public:
  explicit StoredAs(std::vector<std::pair<std::string, DType>> dtypes)
      : source_(make_random_weights(model_config(), 3)), dtypes_(std::move(dtypes)) {}
  std::optional<StoredTensor> find(std::string_view name) const override {
    std::optional<StoredTensor> found = source_->find(name);
    for (const auto& [end, dtype] : dtypes_) {
      if (found && name.ends_with(end)) found->dtype = dtype;
    }
    return found;
  }
  void read(std::string_view, IndexRange, IndexRange, TensorView) const override {
    check_failed("planned only", __FILE__, __LINE__);
  }
  void read_blocks(std::string_view, IndexRange, IndexRange, const QuantisedRows&) const override {
    check_failed("planned only", __FILE__, __LINE__);
  }
  std::string description() const override { return "stored in dtypes of their own"; }

 private:
  std::unique_ptr<WeightSource> source_;
  std::vector<std::pair<std::string, DType>> dtypes_;
};

// What a stored table becomes.
struct Held {
  WeightFormat format;
  std::vector<std::string> notes;
};

Held held_table(DType stored, const WeightFormat& wanted) {
  const StoredAs source({{"embed_tokens.weight", stored}});
  ShardReader reader(nullptr, source, {.quantised = wanted}, DType::F32, nullptr, 0);
  const WeightMatrix table = reader.table({std::string(embedding_name), {0, 333}, {0, 200}});
  EXPECT_EQ(reader.bytes(), table.format().n_bytes(333, 200));
  return {table.format(), reader.notes()};
}

TEST(Loader, tables_are_held_in_a_format_of_their_own) {
  for (const WeightFormat& format : {int8_row, int8_g32, int8_g128}) {
    EXPECT_EQ(held_table(DType::BF16, format).format, format);
  }
  for (const WeightFormat& format : {int4_g32, int4_g128}) {
    const Held table = held_table(DType::BF16, format);
    EXPECT_EQ(table.format, int8_g32);
    EXPECT_THAT(
        table.notes,
        ElementsAre("embeddings and head: int8-g32", "weights converted: bf16 -> int8-g32"));
    EXPECT_THAT(held_table(DType::Q8_0, format).notes,
                ElementsAre("embeddings and head: int8-g32", "weights computed as stored: q8_0"));
  }
  for (const WeightFormat& format : {fp8_tensor, fp8_row, fp8_block128}) {
    const Held table = held_table(DType::BF16, format);
    EXPECT_EQ(table.format, WeightFormat(DType::BF16));
    EXPECT_THAT(table.notes, ElementsAre("not quantised: embeddings and head, bf16"));
    EXPECT_EQ(held_table(DType::Q8_0, format).format, WeightFormat(DType::F32));
  }
  // Stored in 4 bits: kept where that is what was asked for.
  EXPECT_EQ(held_table(DType::Q4_1, int4_g32).format, q4_1);
  EXPECT_EQ(held_table(DType::Q4_1, int4_g128).format, int8_g32);
}

TEST(Loader, what_is_4_bits_in_groups_of_32_already_is_not_quantised_again) {
  const std::string mlp = layer_tensor_name(0, "mlp.");
  const auto held = [&](DType gate, DType up, const WeightFormat& wanted) {
    const StoredAs source({{"gate_proj.weight", gate}, {"up_proj.weight", up}});
    ShardReader reader(nullptr, source, {.quantised = wanted}, DType::F32, nullptr, 0);
    const WeightMatrix both = reader.matrix({{mlp + "gate_proj.weight", {0, 680}, {0, 200}},
                                             {mlp + "up_proj.weight", {0, 680}, {0, 200}}});
    return Held{both.format(), reader.notes()};
  };
  for (const DType stored : {DType::Q4_0, DType::Q4_1}) {
    const Held kept = held(stored, stored, int4_g32);
    EXPECT_EQ(kept.format, native_format(stored));
    EXPECT_THAT(kept.notes,
                ElementsAre(fmt::format("weights computed as stored: {}", dtype_name(stored))));
    EXPECT_EQ(held(stored, stored, int4_g128).format, int4_g128);
    EXPECT_EQ(held(stored, stored, int8_g32).format, int8_g32);
  }
  EXPECT_THAT(held(DType::Q8_0, DType::Q8_0, int8_g32).notes,
              ElementsAre("weights computed as stored: q8_0"));
  // One matrix has one format.
  EXPECT_EQ(held(DType::Q4_0, DType::Q4_1, int4_g32).format, int4_g32);
  EXPECT_EQ(held(DType::Q4_1, DType::BF16, int4_g32).format, int4_g32);
}

TEST(Loader, loads_what_was_planned_in_every_format_and_split) {
  ModelConfig dense = model_config();
  dense.n_layers = 2;
  dense.layer_windows = {0, 0};
  dense.tied_embeddings = true;
  for (const ModelConfig& config :
       {dense, test::deepseek_config("deepseek_v3"), test::mixtral_config()}) {
    const auto source = make_random_weights(config, 0);
    for (const auto& [name, format] : quantisable) {
      const ResidentWeights wanted{.quantised = format};
      CpuDevice device = f32_device(1);
      const int64_t block = column_granularity(*source, config, wanted, DType::F32);
      EXPECT_EQ(block, format.col_granularity());
      for (const ShardPosition& position :
           {ShardPosition{}, ShardPosition{.tp = 2, .tp_rank = 1}, ShardPosition{.n_stages = 2}}) {
        if (why_illegal_tp(config, position.tp, block)) continue;
        SCOPED_TRACE(fmt::format("{} {} tp {}", config.family, name, position.tp));
        int64_t last = 0;
        int64_t total = 0;
        const Model model =
            load_model(device, *source, config, position, wanted, [&](int64_t done, int64_t all) {
              EXPECT_LE(last, done);
              last = done;
              total = all;
            });
        const int64_t planned =
            planned_weights_bytes(*source, config, position, wanted, DType::F32);
        EXPECT_EQ(model.weights_bytes, planned);
        EXPECT_EQ(total, planned);
        EXPECT_LE(last, planned);
      }
    }
  }
}

TEST(Loader, without_a_dtype_asked_for_nothing_is_quantised) {
  const auto source = make_random_weights(model_config(), 3);
  ShardReader reader(nullptr, *source, {}, DType::BF16, nullptr, 0);
  const WeightMatrix weight = reader.matrix({{std::string(embedding_name), {0, 333}, {0, 200}}});
  EXPECT_EQ(weight.format(), WeightFormat(DType::BF16));
  EXPECT_THAT(reader.notes(), IsEmpty());
  EXPECT_EQ(column_granularity(*source, model_config(), {}, DType::BF16), 1);
}

// Block types as a file has them.
TEST(Loader, stored_blocks_are_held_as_they_are_unless_cast) {
  using enum PlainWeights;
  for (const PlainWeights plain : {as_stored, for_gpu}) {
    EXPECT_EQ(resident_format(DType::Q8_0, {plain}, DType::BF16), int8_g32);
    EXPECT_EQ(resident_format(DType::Q4_0, {plain}, DType::F32), q4_0);
    EXPECT_EQ(resident_format(DType::Q4_1, {plain}, DType::BF16), q4_1);
    EXPECT_EQ(resident_format(DType::Q6_K, {plain}, DType::BF16), WeightFormat(DType::BF16));
    EXPECT_EQ(resident_format(DType::Q4_K, {plain}, DType::F32), WeightFormat(DType::F32));
  }
  EXPECT_EQ(resident_format(DType::Q8_0, {bf16}, DType::F32), WeightFormat(DType::BF16));
  EXPECT_EQ(resident_format(DType::Q4_1, {f32}, DType::BF16), WeightFormat(DType::F32));
  EXPECT_EQ(resident_format(DType::Q4_1, {as_stored, fp8_row}, DType::BF16), fp8_row);
  EXPECT_EQ(resident_format(DType::Q4_1, {bf16}, DType::F32, MatrixRole::table),
            WeightFormat(DType::BF16));
  EXPECT_EQ(resident_format(DType::Q4_1, {as_stored, fp8_row}, DType::BF16, MatrixRole::plain),
            WeightFormat(DType::BF16));
  EXPECT_EQ(resident_plain_dtype(DType::Q8_0, as_stored, DType::F32), DType::F32);
}

}  // namespace
}  // namespace testbed
