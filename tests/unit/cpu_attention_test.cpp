// Paged attention at every level of this processor: against the unit references in double, against
// plain sums over random paged caches, and what must not change a row (other rows, threads, keys it
// does not see).
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/attention.hpp"
#include "tests/unit/isas.hpp"
#include "tests/unit/test_safetensors.hpp"
#include "tests/unit/tolerance.hpp"

namespace testbed::cpu {
namespace {

// A reproducible value in [-1, 1), exact in bf16.
float noise(uint64_t index) {
  uint64_t z = index * 0x9e3779b97f4a7c15U + 0x7654321U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return to_f32(to_bf16(static_cast<float>(static_cast<int32_t>(z >> 32)) * 0x1p-31F));
}

void put(TensorView t, int64_t i, float value) {
  if (t.dtype() == DType::F32) {
    t.as<float>()[i] = value;
  } else {
    t.as<bf16>()[i] = to_bf16(value);
  }
}
double get(TensorView t, int64_t i) {
  return static_cast<double>(t.dtype() == DType::F32 ? t.as<float>()[i] : to_f32(t.as<bf16>()[i]));
}

struct Dims {
  DType dtype = DType::F32;
  int64_t n_heads = 1;
  int64_t n_kv_heads = 1;
  int64_t head_dim = 16;
  int64_t block_size = 16;
  int64_t window = 0;
};

struct Request {
  int64_t first_position = 0;
  int64_t n_rows = 0;
};

// A batch over a paged cache whose blocks are scattered; memory that no query may read is NaN.
class Batch {
 public:
  Batch(const Dims& dims, std::vector<Request> requests) : dims_(dims), requests_(requests) {
    int64_t n_rows = 0;
    for (const Request& r : requests) {
      n_rows += r.n_rows;
      n_blocks_ += blocks_of(r);
    }
    q_ = Tensor(dims.dtype, {n_rows, dims.n_heads, dims.head_dim});
    out_ = Tensor(dims.dtype, q_.shape());
    const Shape cache{n_blocks_, dims.n_kv_heads, dims.block_size, dims.head_dim};
    k_ = Tensor(dims.dtype, cache);
    v_ = Tensor(dims.dtype, cache);
    lse_.resize(static_cast<size_t>(n_rows * dims.n_heads));
    for (int64_t i = 0; i < k_.n_elements(); ++i) {
      put(k_, i, std::numeric_limits<float>::quiet_NaN());
      put(v_, i, std::numeric_limits<float>::quiet_NaN());
    }
    for (int64_t h = 0; h < dims.n_heads; ++h) {
      head_to_kv.push_back(static_cast<int32_t>(h * dims.n_kv_heads / dims.n_heads));
    }
    for (const Request& r : requests) add(r);
  }

  int64_t n_rows() const { return q_.shape()[0]; }
  TensorView q() const { return q_; }
  TensorView out() const { return out_; }
  const std::vector<float>& lse() const { return lse_; }
  KvView kv() const {
    return {k_.data(),
            v_.data(),
            dims_.dtype,
            n_blocks_,
            dims_.block_size,
            dims_.n_kv_heads,
            dims_.head_dim};
  }
  float key(int64_t request, int64_t kv_head, int64_t j, int64_t d) const {
    return 2 * noise(seed(1, request, kv_head, j, d));
  }
  float value(int64_t request, int64_t kv_head, int64_t j, int64_t d) const {
    return noise(seed(2, request, kv_head, j, d));
  }
  bool sees(int64_t position, int64_t j) const {
    return j <= position && (dims_.window == 0 || j > position - dims_.window);
  }

  void run(Isa isa, int n_threads, float scale) {
    ThreadPool pool(n_threads, false);
    std::vector<AttentionSequence> sequences = sequences_;
    for (size_t i = 0; i < sequences.size(); ++i) sequences[i].block_table = tables_[i].data();
    paged_attention({.q = q_,
                     .kv = kv(),
                     .sequences = sequences,
                     .window = dims_.window,
                     .scale = scale,
                     .head_to_kv = head_to_kv,
                     .out = out_,
                     .lse = lse_.data()},
                    pool,
                    isa);
  }

  // Compares every row with sums in double.
  void expect_correct(Isa isa, float scale);

  std::vector<int32_t> head_to_kv;

 private:
  int64_t blocks_of(const Request& r) const {
    return (r.first_position + r.n_rows + dims_.block_size - 1) / dims_.block_size;
  }
  uint64_t seed(uint64_t what, int64_t request, int64_t kv_head, int64_t j, int64_t d) const {
    return (((what * 64 + static_cast<uint64_t>(request)) * 64 + static_cast<uint64_t>(kv_head)) *
                65536 +
            static_cast<uint64_t>(j)) *
               256 +
           static_cast<uint64_t>(d);
  }
  void add(const Request& r);
  void expect_row(Isa isa, float scale, int64_t request, int64_t i, int64_t h);

  Dims dims_;
  std::vector<Request> requests_;
  int64_t n_blocks_ = 0;
  int64_t next_block_ = 0;
  int64_t next_row_ = 0;
  Tensor q_, out_, k_, v_;
  std::vector<float> lse_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<AttentionSequence> sequences_;
};

void Batch::add(const Request& r) {
  const auto request = static_cast<int64_t>(tables_.size());
  std::vector<int32_t> table;
  for (int64_t b = 0; b < blocks_of(r); ++b) {
    const int64_t block = n_blocks_ - 1 - next_block_++;  // in reverse
    bool visible = false;
    for (int64_t j = b * dims_.block_size; j < (b + 1) * dims_.block_size; ++j) {
      if (j >= r.first_position + r.n_rows ||
          !(sees(r.first_position, j) || j > r.first_position)) {
        continue;
      }
      visible = true;
      for (int64_t g = 0; g < dims_.n_kv_heads; ++g) {
        const int64_t at =
            ((block * dims_.n_kv_heads + g) * dims_.block_size + j % dims_.block_size) *
            dims_.head_dim;
        for (int64_t d = 0; d < dims_.head_dim; ++d) {
          put(k_, at + d, key(request, g, j, d));
          put(v_, at + d, value(request, g, j, d));
        }
      }
    }
    table.push_back(visible ? static_cast<int32_t>(block) : -1);
  }
  for (int64_t i = 0; i < r.n_rows * dims_.n_heads * dims_.head_dim; ++i) {
    put(q_,
        next_row_ * dims_.n_heads * dims_.head_dim + i,
        2 * noise(seed(3, request, 0, r.first_position, 0) + static_cast<uint64_t>(i)));
  }
  tables_.push_back(table);
  sequences_.push_back({next_row_, r.n_rows, r.first_position, nullptr});
  next_row_ += r.n_rows;
}

void Batch::expect_row(Isa isa, float scale, int64_t request, int64_t i, int64_t h) {
  const AttentionSequence& s = sequences_[static_cast<size_t>(request)];
  const int64_t position = s.first_position + i;
  const int64_t kv_head = head_to_kv[static_cast<size_t>(h)];
  const int64_t at = ((s.first_row + i) * dims_.n_heads + h) * dims_.head_dim;
  std::vector<double> scores;
  std::vector<int64_t> keys;
  double norm = 0;
  double q_norm = 0;
  for (int64_t d = 0; d < dims_.head_dim; ++d) q_norm += get(q_, at + d) * get(q_, at + d);
  for (int64_t j = 0; j <= position; ++j) {
    if (!sees(position, j)) continue;
    double score = 0;
    double k_norm = 0;
    for (int64_t d = 0; d < dims_.head_dim; ++d) {
      const auto k = static_cast<double>(key(request, kv_head, j, d));
      score += get(q_, at + d) * k;
      k_norm += k * k;
    }
    keys.push_back(j);
    scores.push_back(static_cast<double>(scale) * score);
    norm = std::max(norm, static_cast<double>(scale) * std::sqrt(q_norm * k_norm));
  }
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  std::vector<double> mean(static_cast<size_t>(dims_.head_dim));
  for (size_t n = 0; n < keys.size(); ++n) {
    const double p = std::exp(scores[n] - maximum);
    sum += p;
    for (int64_t d = 0; d < dims_.head_dim; ++d) {
      mean[static_cast<size_t>(d)] += p * static_cast<double>(value(request, kv_head, keys[n], d));
    }
  }
  const auto n_keys = static_cast<int64_t>(keys.size());
  const double bound = tolerance::attention(dims_.head_dim, norm, n_keys, 1.0);
  for (int64_t d = 0; d < dims_.head_dim; ++d) {
    const double want = mean[static_cast<size_t>(d)] / sum;
    ASSERT_NEAR(
        get(out_, at + d), want, bound + tolerance::store(dims_.dtype, std::abs(want) + bound))
        << isa_name(isa) << " request " << request << " row " << i << " head " << h << " d " << d;
  }
  const double want_lse = maximum + std::log(sum);
  ASSERT_NEAR(static_cast<double>(lse_[static_cast<size_t>(at / dims_.head_dim)]),
              want_lse,
              bound + tolerance::store(DType::F32, want_lse))
      << isa_name(isa);
}

void Batch::expect_correct(Isa isa, float scale) {
  for (size_t s = 0; s < sequences_.size(); ++s) {
    for (int64_t i = 0; i < sequences_[s].n_rows; ++i) {
      for (int64_t h = 0; h < dims_.n_heads; ++h) {
        ASSERT_NO_FATAL_FAILURE(expect_row(isa, scale, static_cast<int64_t>(s), i, h));
      }
    }
  }
}

const std::string units = std::string(TESTBED_SOURCE_DIR) + "/tests/fixtures/units/";

bool expressible(const nlohmann::json& c) {
  return !c.contains("softcap") && !c.contains("use_sinks") && !c.contains("kv_range") &&
         c.value("causal", true) && c.at("inputs") != "mla";
}

void run_unit_case(const nlohmann::json& c,
                   const std::map<std::string, ReferenceTensor>& tensors,
                   Isa isa,
                   int64_t block_size) {
  const std::string name = c.at("name");
  const std::string inputs = c.at("inputs");
  const ReferenceTensor& k = tensors.at(inputs + ".k");
  const int64_t n_keys = k.shape[0], n_kv_heads = k.shape[1], head_dim = k.shape[2];
  const int64_t n_heads = tensors.at(inputs + ".q").shape[1];
  const int64_t q_first = c.at("q_first"), q_count = c.at("q_count");
  const int64_t n_blocks = (n_keys + block_size - 1) / block_size;
  ThreadPool pool(1, false);
  const auto rows = [&](const std::string& tensor, int64_t first, int64_t count, int64_t heads) {
    Tensor t(DType::F32, {count, heads, head_dim});
    const auto& values = tensors.at(tensor).values;
    for (int64_t i = 0; i < t.n_elements(); ++i) {
      t.as<float>()[i] =
          static_cast<float>(values[static_cast<size_t>(first * heads * head_dim + i)]);
    }
    return t;
  };
  Tensor k_cache(DType::F32, {n_blocks, n_kv_heads, block_size, head_dim});
  Tensor v_cache(DType::F32, k_cache.shape());
  const KvView kv{
      k_cache.data(), v_cache.data(), DType::F32, n_blocks, block_size, n_kv_heads, head_dim};
  std::vector<int64_t> slots(static_cast<size_t>(n_keys));
  std::vector<int32_t> table;
  for (int64_t b = 0; b < n_blocks; ++b) table.push_back(static_cast<int32_t>(n_blocks - 1 - b));
  for (int64_t j = 0; j < n_keys; ++j) {
    slots[static_cast<size_t>(j)] =
        table[static_cast<size_t>(j / block_size)] * block_size + j % block_size;
  }
  write_kv(rows(inputs + ".k", 0, n_keys, n_kv_heads),
           rows(inputs + ".v", 0, n_keys, n_kv_heads),
           kv,
           slots,
           pool);
  std::vector<int32_t> head_to_kv;
  for (int64_t h = 0; h < n_heads; ++h) {
    head_to_kv.push_back(static_cast<int32_t>(h / (n_heads / n_kv_heads)));
  }
  const Tensor q = rows(inputs + ".q", q_first, q_count, n_heads);
  const Tensor out(DType::F32, q.shape());
  std::vector<float> lse(static_cast<size_t>(q_count * n_heads));
  const AttentionSequence sequence{0, q_count, q_first, table.data()};
  paged_attention({.q = q,
                   .kv = kv,
                   .sequences = {&sequence, 1},
                   .window = c.value("window", int64_t{0}),
                   .scale = c.at("scale").get<float>(),
                   .head_to_kv = head_to_kv,
                   .out = out,
                   .lse = lse.data()},
                  pool,
                  isa);
  const auto& want = tensors.at(name + ".out").values;
  const auto& want_lse = tensors.at(name + ".lse").values;
  ASSERT_EQ(static_cast<int64_t>(want.size()), out.n_elements());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(out.as<float>()[i]), want[i], 1e-5)
        << name << isa_name(isa) << i;
  }
  for (size_t i = 0; i < want_lse.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(lse[i]), want_lse[i], 1e-5) << name << isa_name(isa) << i;
  }
}

TEST(CpuAttention, unit_references) {
  std::ifstream file(units + "attention.json");
  const auto json = nlohmann::json::parse(file);
  const auto tensors = read_reference_tensors(units + "attention.safetensors");
  int n_cases = 0;
  for (const auto& c : json.at("cases")) {
    if (!expressible(c)) continue;
    ++n_cases;
    for (const Isa isa : isas_here()) {
      for (const int64_t block_size : {1, 5, 16, 64}) {
        ASSERT_NO_FATAL_FAILURE(run_unit_case(c, tensors, isa, block_size));
      }
    }
  }
  EXPECT_EQ(n_cases, 8);
}

TEST(CpuAttention, every_head_size_and_group) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const int64_t head_dim : {2, 16, 18, 64, 80, 96, 128, 200, 256}) {
      for (const int64_t group : {1, 3, 4, 8}) {
        const Dims dims{
            .dtype = dtype, .n_heads = 2 * group, .n_kv_heads = 2, .head_dim = head_dim};
        Batch batch(dims, {{0, 19}, {70, 1}, {62, 3}});
        const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
        for (const Isa isa : isas_here()) {
          batch.run(isa, 1, scale);
          ASSERT_NO_FATAL_FAILURE(batch.expect_correct(isa, scale)) << head_dim << " " << group;
        }
      }
    }
  }
}

TEST(CpuAttention, windows_skip_released_blocks) {
  for (const int64_t window : {1, 5, 16, 63, 64, 65, 600}) {
    for (const int64_t block_size : {3, 16, 64}) {
      const Dims dims{.n_heads = 4, .n_kv_heads = 2, .block_size = block_size, .window = window};
      Batch batch(dims, {{1030, 1}, {0, 70}, {500, 30}, {1000, 2}});
      for (const Isa isa : isas_here()) {
        batch.run(isa, 2, 0.25F);
        ASSERT_NO_FATAL_FAILURE(batch.expect_correct(isa, 0.25F)) << window << " " << block_size;
      }
    }
  }
}

TEST(CpuAttention, long_context_and_many_heads) {
  Batch batch({.dtype = DType::BF16, .n_heads = 100, .n_kv_heads = 1, .head_dim = 64}, {{2047, 2}});
  Batch decode({.dtype = DType::BF16, .n_heads = 2, .n_kv_heads = 2, .head_dim = 128}, {{9000, 1}});
  for (const Isa isa : isas_here()) {
    batch.run(isa, 2, 0.125F);
    ASSERT_NO_FATAL_FAILURE(batch.expect_correct(isa, 0.125F));
    decode.run(isa, 3, 0.1F);
    ASSERT_NO_FATAL_FAILURE(decode.expect_correct(isa, 0.1F));
  }
}

TEST(CpuAttention, heads_of_one_kv_head_need_not_be_neighbours) {
  Batch batch({.n_heads = 5, .n_kv_heads = 3}, {{0, 40}, {50, 1}});
  batch.head_to_kv = {2, 0, 2, 0, 2};
  for (const Isa isa : isas_here()) {
    batch.run(isa, 1, 0.25F);
    ASSERT_NO_FATAL_FAILURE(batch.expect_correct(isa, 0.25F));
  }
}

// The largest score far above the others, and scores that differ by more than exp can express.
TEST(CpuAttention, extreme_scores_stay_finite) {
  Batch batch({.n_heads = 2, .n_kv_heads = 1, .head_dim = 16}, {{0, 200}});
  for (const Isa isa : isas_here()) {
    batch.run(isa, 1, 100.0F);
    ASSERT_NO_FATAL_FAILURE(batch.expect_correct(isa, 100.0F));
  }
}

TEST(CpuAttention, a_row_depends_on_neither_threads_nor_batch) {
  const Dims dims{.dtype = DType::F32, .n_heads = 6, .n_kv_heads = 2, .head_dim = 80};
  const int64_t row_elements = dims.n_heads * dims.head_dim;
  for (const Isa isa : isas_here()) {
    Batch prefill(dims, {{0, 1300}});
    prefill.run(isa, 1, 0.1F);
    std::vector<float> alone(prefill.out().as<float>(),
                             prefill.out().as<float>() + prefill.out().n_elements());
    prefill.run(isa, 4, 0.1F);
    EXPECT_EQ(std::memcmp(alone.data(), prefill.out().data(), alone.size() * sizeof(float)), 0)
        << isa_name(isa);
    // The last position as a decode step, with the same query, split over threads.
    Batch decode(dims, {{1299, 1}, {30, 2}});
    std::copy_n(
        prefill.q().as<float>() + 1299 * row_elements, row_elements, decode.q().as<float>());
    decode.run(isa, 3, 0.1F);
    EXPECT_EQ(std::memcmp(alone.data() + 1299 * row_elements,
                          decode.out().data(),
                          static_cast<size_t>(row_elements) * sizeof(float)),
              0)
        << isa_name(isa);
  }
}

// 3e9 elements of K and of V reserved, four pages of each touched.
TEST(CpuAttention, D23_kv_element_offset_beyond_2_31) {
  const int64_t block_size = 16, head_dim = 64;
  const int64_t n_blocks = int64_t{3'000'000'000} / (block_size * head_dim);
  const auto n_bytes = static_cast<size_t>(n_blocks * block_size * head_dim * 2);
  const auto reserve = [&] {
    return mmap(nullptr,
                n_bytes,
                PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1,
                0);
  };
  void* k = reserve();
  void* v = reserve();
  ASSERT_NE(k, MAP_FAILED);
  ASSERT_NE(v, MAP_FAILED);
  const KvView kv{k, v, DType::BF16, n_blocks, block_size, 1, head_dim};
  const int64_t n_keys = 20;
  const std::vector<int32_t> table{static_cast<int32_t>(n_blocks - 1),
                                   static_cast<int32_t>(n_blocks - 3)};
  Tensor k_rows(DType::BF16, {n_keys, 1, head_dim});
  Tensor v_rows(DType::BF16, {n_keys, 1, head_dim});
  std::vector<int64_t> slots;
  for (int64_t j = 0; j < n_keys; ++j) {
    slots.push_back(table[static_cast<size_t>(j / block_size)] * block_size + j % block_size);
    for (int64_t d = 0; d < head_dim; ++d) put(v_rows, j * head_dim + d, static_cast<float>(j));
  }
  ASSERT_GT(slots[0] * head_dim, int64_t{1} << 31);
  ThreadPool pool(1, false);
  write_kv(k_rows, v_rows, kv, slots, pool);
  const Tensor q(DType::BF16, {1, 1, head_dim});
  const AttentionSequence sequence{0, 1, n_keys - 1, table.data()};
  const std::vector<int32_t> head_to_kv{0};
  for (const Isa isa : isas_here()) {
    const Tensor out(DType::BF16, q.shape());
    paged_attention(
        {.q = q, .kv = kv, .sequences = {&sequence, 1}, .head_to_kv = head_to_kv, .out = out},
        pool,
        isa);
    for (int64_t d = 0; d < head_dim; ++d)
      EXPECT_EQ(get(out, d), 9.5) << isa_name(isa);  // mean of 0..19
  }
  munmap(k, n_bytes);
  munmap(v, n_bytes);
}

}  // namespace
}  // namespace testbed::cpu
