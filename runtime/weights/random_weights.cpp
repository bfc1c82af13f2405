// Seeded random weights. Integer arithmetic and one rounding per element, so that every machine and
// every sharding computes the same bits.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "kernels/base/errors.hpp"
#include "runtime/weights/convert.hpp"
#include "runtime/weights/random_fill.hpp"
#include "runtime/weights/tensor_names.hpp"
#include "runtime/weights/weight_source.hpp"

namespace testbed {
namespace {

constexpr float matrix_std = 0.02F;  // Hugging Face's initializer_range
constexpr float bias_std = 0.02F;
constexpr float norm_std = 0.02F;  // of scales too

// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

uint64_t tensor_key(uint64_t seed, std::string_view name) {
  uint64_t key = mix64(seed);
  for (const char c : name) key = mix64(key ^ static_cast<unsigned char>(c));
  return key;
}

// The key of elements [high << 32, (high + 1) << 32).
RandomKey block_key(uint64_t key, uint64_t high) {
  const uint64_t k = mix64(key ^ (high * 0xd1342543de82ef95U));
  return {static_cast<uint32_t>(k), static_cast<uint32_t>(k >> 32)};
}

struct Distribution {
  float mean;
  float scale;
};

// Norms and scales multiply by about 1; norms that multiply by 1 + w (norm_adds_one) have w about
// 0.
Distribution distribution(TensorKind kind, bool norm_adds_one) {
  const auto scale = [](float std) {
    return static_cast<float>(static_cast<double>(std) / triangular_std);
  };
  switch (kind) {
    case TensorKind::matrix:
      return {0.0F, scale(matrix_std)};
    case TensorKind::norm:
      return {norm_adds_one ? 0.0F : 1.0F, scale(norm_std)};
    case TensorKind::scale:
      return {1.0F, scale(norm_std)};
    case TensorKind::bias:
      return {0.0F, scale(bias_std)};
  }
  check_failed("known kind", __FILE__, __LINE__);
}

void round_to(DType dtype, int64_t n, float* values) {
  if (dtype == DType::F32) return;
  for (int64_t i = 0; i < n; ++i)
    values[i] = dtype == DType::BF16 ? to_f32(to_bf16(values[i])) : to_f32(to_f16(values[i]));
}

class RandomWeights : public WeightSource {
 public:
  RandomWeights(const ModelConfig& config, uint64_t seed)
      : dtype_(config.stored_dtype), norm_adds_one_(config.norm_adds_one), seed_(seed) {
    if (dtype_ != DType::F32 && dtype_ != DType::F16 && dtype_ != DType::BF16)
      throw WeightsError(fmt::format("random weights: stored dtype {} is not one of f32, f16, bf16",
                                     dtype_name(dtype_)));
    for (TensorSpec& spec : required_tensors(config))
      tensors_.emplace(std::move(spec.name), Known{spec.shape, spec.kind});
  }

  std::optional<StoredTensor> find(std::string_view name) const override {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return std::nullopt;
    return StoredTensor{dtype_, it->second.shape};
  }

  void read(std::string_view name,
            IndexRange rows,
            IndexRange cols,
            TensorView dst) const override {
    const auto it = tensors_.find(name);
    if (it == tensors_.end())
      throw WeightsError(fmt::format("{}: the model has no tensor '{}'", description(), name));
    const Shape& shape = it->second.shape;
    const int64_t n_cols = shape[-1];
    CHECK(0 <= rows.begin && rows.begin <= rows.end &&
          rows.end <= (shape.rank() == 1 ? 1 : shape[0]));
    CHECK(0 <= cols.begin && cols.begin <= cols.end && cols.end <= n_cols);
    CHECK(dst.n_elements() == rows.size() * cols.size());
    const uint64_t key = tensor_key(seed_, name);
    const Distribution values = distribution(it->second.kind, norm_adds_one_);
    auto* out = static_cast<std::byte*>(dst.data());
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      write(key, row * n_cols + cols.begin, cols.size(), values, dst.dtype(), out);
      out += dtype_bytes(dst.dtype(), cols.size());
    }
  }

  // There is no stored dtype in blocks.
  void read_blocks(std::string_view /*name*/,
                   IndexRange /*rows*/,
                   IndexRange /*cols*/,
                   const QuantisedRows& /*dst*/) const override {
    check_failed("stored in blocks", __FILE__, __LINE__);
  }

  std::string description() const override { return fmt::format("random(seed={})", seed_); }

 private:
  void write(
      uint64_t key, int64_t first, int64_t n, Distribution values, DType to, std::byte* out) const {
    constexpr int64_t chunk = 2048;
    std::array<float, chunk> buffer;
    const bool directly = values.mean == 0.0F && to == dtype_ && to != DType::F16;
    while (n > 0) {
      const int64_t to_boundary = (int64_t{1} << 32) - (first & 0xffffffff);
      const int64_t m = std::min({directly ? n : chunk, n, to_boundary});
      const RandomKey block = block_key(key, static_cast<uint64_t>(first) >> 32);
      const auto low = static_cast<uint32_t>(first);
      if (directly) {
        fill_(block, low, m, values.scale, to, out);
      } else {
        auto* bytes = reinterpret_cast<std::byte*>(buffer.data());
        fill_(block, low, m, values.scale, DType::F32, bytes);
        for (int64_t i = 0; i < m; ++i) buffer[static_cast<size_t>(i)] += values.mean;
        if (to != dtype_) round_to(dtype_, m, buffer.data());
        convert_elements(DType::F32, bytes, m, to, out);
      }
      out += dtype_bytes(to, m);
      first += m;
      n -= m;
    }
  }

  struct Known {
    Shape shape;
    TensorKind kind;
  };
  DType dtype_;
  bool norm_adds_one_;
  uint64_t seed_;
  RandomFill fill_ = random_fill_versions().front();
  std::map<std::string, Known, std::less<>> tensors_;
};

}  // namespace

std::unique_ptr<WeightSource> make_random_weights(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<RandomWeights>(config, seed);
}

}  // namespace testbed
