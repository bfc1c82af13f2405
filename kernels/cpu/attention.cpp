// Attention's outer loops: which keys each block of query rows sees, where they lie in the cache,
// and who computes what.
//
// Keys are cut into chunks at multiples of 512 positions. A row's result is the merge, in order, of
// its chunks' partial results, so it depends neither on the other rows of the batch nor on the
// number of threads.
#include "kernels/cpu/attention.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/attention_kernel.hpp"

namespace testbed::cpu {
namespace {

constexpr int64_t chunk_keys = attention_chunk_tiles * attention_tile;
constexpr int64_t pointer_keys = chunk_keys + attention_tile;

// Query heads [first, first + n) of heads_of[kv_head] at queries [first_query, first_query +
// n_queries) of a sequence. Row = query * n_heads + head.
struct Block {
  const AttentionSequence* sequence = nullptr;
  int64_t kv_head = 0;
  const int32_t* heads = nullptr;
  int64_t n_heads = 0;
  int64_t first_query = 0;
  int64_t n_queries = 0;
  int64_t first_key = 0;  // keys [first_key, end_key) are seen by some row
  int64_t end_key = 0;

  int64_t n_rows() const { return n_queries * n_heads; }
  int64_t first_chunk() const { return first_key / chunk_keys; }
  int64_t end_chunk() const { return (end_key - 1) / chunk_keys + 1; }
};

// (maximum, sum, unnormalised output) of up to attention_max_rows rows.
struct Partial {
  float* maximum = nullptr;
  float* sum = nullptr;
  float* out = nullptr;
};

// A multiple of 64 bytes; padded_dim is one of 16 floats.
constexpr int64_t partial_floats(int64_t n_rows, int64_t padded_dim) {
  return n_rows * padded_dim + (2 * n_rows + 15) / 16 * 16;
}

Partial partial_at(float* data, int64_t n_rows, int64_t padded_dim) {
  float* maximum = data + n_rows * padded_dim;
  return {maximum, maximum + n_rows, data};
}

// One thread's memory, kept between calls.
struct Scratch {
  Tensor memory;
  float* q = nullptr;
  float* tile = nullptr;
  Partial total;
  Partial chunk;
  const std::byte* k_rows[pointer_keys];
  const std::byte* v_rows[pointer_keys];

  void reserve(int64_t padded_dim) {
    const int64_t q_floats = attention_max_rows * padded_dim;
    const int64_t p_floats = partial_floats(attention_max_rows, padded_dim);
    const int64_t n = q_floats + 2 * p_floats + attention_scratch_floats(padded_dim);
    if (memory.n_elements() < n || memory.empty()) memory = Tensor(DType::F32, Shape{n});
    q = memory.as<float>();
    total = partial_at(q + q_floats, attention_max_rows, padded_dim);
    chunk = partial_at(q + q_floats + p_floats, attention_max_rows, padded_dim);
    tile = q + q_floats + 2 * p_floats;
  }
};

class Attention {
 public:
  Attention(const AttentionArgs& args, Isa isa);

  void run(ThreadPool& pool);

 private:
  void make_blocks();
  void add_blocks(const AttentionSequence& sequence, int64_t kv_head);
  void run_whole(ThreadPool& pool);
  void run_split(ThreadPool& pool);
  void load_queries(const Block& block, Scratch& scratch) const;
  void find_rows(const Block& block, int64_t first, int64_t end, Scratch& scratch) const;
  void attend(const Block& block, int64_t chunk, Scratch& scratch, const Partial& out) const;
  void merge(const Partial& part, int64_t n_rows, const Partial& total) const;
  void reset(const Partial& total, int64_t n_rows) const;
  void store(const Block& block, const Partial& total) const;
  int64_t q_offset(const Block& block, int64_t row) const;

  const AttentionArgs& args_;
  int64_t n_heads_ = 0;
  int64_t head_dim_ = 0;
  int64_t padded_dim_ = 0;
  void (*kernel_)(const AttentionChunk&) = nullptr;
  std::vector<std::vector<int32_t>> heads_of_;  // by KV head
  std::vector<Block> blocks_;
};

Scratch& thread_scratch(int64_t padded_dim) {
  static thread_local Scratch scratch;
  scratch.reserve(padded_dim);
  return scratch;
}

Attention::Attention(const AttentionArgs& args, Isa isa) : args_(args) {
  CHECK(args.q.shape().rank() == 3 && args.out.shape() == args.q.shape());
  CHECK(args.q.dtype() == DType::F32 || args.q.dtype() == DType::BF16);
  CHECK(args.kv.dtype == args.q.dtype() && args.out.dtype() == args.q.dtype());
  n_heads_ = args.q.shape()[1];
  head_dim_ = args.q.shape()[2];
  padded_dim_ = (head_dim_ + 15) / 16 * 16;
  CHECK(head_dim_ > 0 && head_dim_ <= 256 && head_dim_ % 2 == 0 && args.kv.head_dim == head_dim_);
  CHECK(args.kv.block_size > 0 && args.window >= 0);
  CHECK(static_cast<int64_t>(args.head_to_kv.size()) == n_heads_);
  kernel_ = isa >= Isa::avx512 ? attend_chunk_avx512
            : isa == Isa::avx2 ? attend_chunk_avx2
                               : attend_chunk_portable;
  heads_of_.resize(static_cast<size_t>(args.kv.n_kv_heads));
  for (int64_t h = 0; h < n_heads_; ++h) {
    const int32_t kv_head = args.head_to_kv[static_cast<size_t>(h)];
    CHECK(kv_head >= 0 && kv_head < args.kv.n_kv_heads);
    heads_of_[static_cast<size_t>(kv_head)].push_back(static_cast<int32_t>(h));
  }
  make_blocks();
}

void Attention::make_blocks() {
  for (const AttentionSequence& sequence : args_.sequences) {
    CHECK(sequence.first_row >= 0 && sequence.n_rows >= 0 && sequence.first_position >= 0);
    CHECK(sequence.first_row + sequence.n_rows <= args_.q.n_rows());
    for (int64_t kv_head = 0; kv_head < args_.kv.n_kv_heads; ++kv_head)
      add_blocks(sequence, kv_head);
  }
  // Longest first, so that the threads end together.
  std::stable_sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) {
    return a.n_rows() * (a.end_key - a.first_key) > b.n_rows() * (b.end_key - b.first_key);
  });
}

void Attention::add_blocks(const AttentionSequence& sequence, int64_t kv_head) {
  const auto& heads = heads_of_[static_cast<size_t>(kv_head)];
  const auto n_group = static_cast<int64_t>(heads.size());
  for (int64_t h = 0; h < n_group; h += attention_max_rows) {
    Block block{.sequence = &sequence, .kv_head = kv_head, .heads = heads.data() + h};
    block.n_heads = std::min(n_group - h, attention_max_rows);
    const int64_t n_queries = attention_max_rows / block.n_heads;
    for (int64_t i = 0; i < sequence.n_rows; i += n_queries) {
      block.first_query = i;
      block.n_queries = std::min(n_queries, sequence.n_rows - i);
      const int64_t position = sequence.first_position + i;
      block.first_key = args_.window == 0 ? 0 : std::max<int64_t>(0, position - args_.window + 1);
      block.end_key = position + block.n_queries;
      blocks_.push_back(block);
    }
  }
}

int64_t Attention::q_offset(const Block& block, int64_t row) const {
  const int64_t q_row = block.sequence->first_row + block.first_query + row / block.n_heads;
  return (q_row * n_heads_ + block.heads[row % block.n_heads]) * head_dim_;
}

void Attention::load_queries(const Block& block, Scratch& scratch) const {
  for (int64_t row = 0; row < block.n_rows(); ++row) {
    float* out = scratch.q + row * padded_dim_;
    if (args_.q.dtype() == DType::F32) {
      std::copy_n(args_.q.as<float>() + q_offset(block, row), head_dim_, out);
    } else {
      const bf16* in = args_.q.as<bf16>() + q_offset(block, row);
      for (int64_t d = 0; d < head_dim_; ++d) out[d] = to_f32(in[d]);
    }
    std::fill(out + head_dim_, out + padded_dim_, 0.0F);
  }
}

// Where keys [first, end) lie; chunk-relative, null for the chunk's other keys. end may reach one
// tile past the chunk.
void Attention::find_rows(const Block& block, int64_t first, int64_t end, Scratch& scratch) const {
  const KvView& kv = args_.kv;
  const int64_t row_bytes = dtype_bytes(kv.dtype, head_dim_);
  const int64_t origin = first / chunk_keys * chunk_keys;
  std::fill_n(scratch.k_rows, pointer_keys, nullptr);
  std::fill_n(scratch.v_rows, pointer_keys, nullptr);
  for (int64_t key = first; key < end;) {
    const int64_t index = key / kv.block_size;
    const int64_t end_of_block = std::min(end, (index + 1) * kv.block_size);
    const int64_t block_id = block.sequence->block_table[index];
    CHECK(block_id >= 0 && block_id < kv.n_blocks);
    int64_t offset =
        ((block_id * kv.n_kv_heads + block.kv_head) * kv.block_size + key % kv.block_size) *
        row_bytes;
    for (; key < end_of_block; ++key, offset += row_bytes) {
      scratch.k_rows[key - origin] = static_cast<const std::byte*>(kv.k) + offset;
      scratch.v_rows[key - origin] = static_cast<const std::byte*>(kv.v) + offset;
    }
  }
}

void Attention::attend(const Block& block,
                       int64_t chunk,
                       Scratch& scratch,
                       const Partial& out) const {
  const int64_t origin = chunk * chunk_keys;
  const int64_t first = std::max(block.first_key, origin);
  const int64_t end = std::min(block.end_key, origin + chunk_keys);
  find_rows(block, first, std::min(block.end_key, origin + pointer_keys), scratch);
  int32_t first_key[attention_max_rows];
  int32_t end_key[attention_max_rows];
  for (int64_t row = 0; row < block.n_rows(); ++row) {
    const int64_t position =
        block.sequence->first_position + block.first_query + row / block.n_heads;
    const int64_t row_first = args_.window == 0 ? 0 : position - args_.window + 1;
    first_key[row] = static_cast<int32_t>(std::clamp<int64_t>(row_first - origin, 0, chunk_keys));
    end_key[row] = static_cast<int32_t>(std::clamp<int64_t>(position + 1 - origin, 0, chunk_keys));
  }
  kernel_({.is_bf16 = args_.kv.dtype == DType::BF16,
           .head_dim = head_dim_,
           .padded_dim = padded_dim_,
           .n_rows = block.n_rows(),
           .scale = args_.scale,
           .q = scratch.q,
           .first_tile = (first - origin) / attention_tile,
           .end_tile = (end - origin + attention_tile - 1) / attention_tile,
           .k_rows = scratch.k_rows,
           .v_rows = scratch.v_rows,
           .first_key = first_key,
           .end_key = end_key,
           .maximum = out.maximum,
           .sum = out.sum,
           .out = out.out,
           .scratch = scratch.tile});
}

void Attention::reset(const Partial& total, int64_t n_rows) const {
  std::fill_n(total.maximum, n_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(total.sum, n_rows, 0.0F);
  std::fill_n(total.out, n_rows * padded_dim_, 0.0F);
}

void Attention::merge(const Partial& part, int64_t n_rows, const Partial& total) const {
  for (int64_t row = 0; row < n_rows; ++row) {
    if (part.sum[row] == 0.0F) continue;  // no visible key
    const float maximum = std::max(total.maximum[row], part.maximum[row]);
    const float keep = std::exp(total.maximum[row] - maximum);
    const float add = std::exp(part.maximum[row] - maximum);
    total.maximum[row] = maximum;
    total.sum[row] = total.sum[row] * keep + part.sum[row] * add;
    const float* from = part.out + row * padded_dim_;
    float* to = total.out + row * padded_dim_;
    for (int64_t d = 0; d < padded_dim_; ++d) to[d] = to[d] * keep + from[d] * add;
  }
}

void Attention::store(const Block& block, const Partial& total) const {
  for (int64_t row = 0; row < block.n_rows(); ++row) {
    const int64_t offset = q_offset(block, row);
    const float* in = total.out + row * padded_dim_;
    const float inverse = 1.0F / total.sum[row];
    if (args_.out.dtype() == DType::F32) {
      float* out = args_.out.as<float>() + offset;
      for (int64_t d = 0; d < head_dim_; ++d) out[d] = in[d] * inverse;
    } else {
      bf16* out = args_.out.as<bf16>() + offset;
      for (int64_t d = 0; d < head_dim_; ++d) out[d] = to_bf16(in[d] * inverse);
    }
    if (args_.lse != nullptr) {
      args_.lse[offset / head_dim_] = total.maximum[row] + std::log(total.sum[row]);
    }
  }
}

void Attention::run_whole(ThreadPool& pool) {
  std::atomic<size_t> next{0};
  const auto work = [&](int) {
    Scratch& scratch = thread_scratch(padded_dim_);
    for (size_t i = next++; i < blocks_.size(); i = next++) {
      const Block& block = blocks_[i];
      load_queries(block, scratch);
      reset(scratch.total, block.n_rows());
      for (int64_t chunk = block.first_chunk(); chunk < block.end_chunk(); ++chunk) {
        attend(block, chunk, scratch, scratch.chunk);
        merge(scratch.chunk, block.n_rows(), scratch.total);
      }
      store(block, scratch.total);
    }
  };
  if (pool.n_threads() == 1 || blocks_.size() == 1) {
    work(0);
  } else {
    pool.run(work);
  }
}

// Fewer blocks than would keep the threads busy: the chunks are the tasks, merged afterwards.
void Attention::run_split(ThreadPool& pool) {
  struct Task {
    size_t block;
    int64_t chunk;
    Partial out;
  };
  std::vector<Task> tasks;
  int64_t n_floats = 0;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    for (int64_t c = blocks_[b].first_chunk(); c < blocks_[b].end_chunk(); ++c) {
      tasks.push_back({b, c, {}});
      n_floats += partial_floats(blocks_[b].n_rows(), padded_dim_);
    }
  }
  const Tensor partials(DType::F32, Shape{n_floats});
  float* next_partial = partials.as<float>();
  for (Task& task : tasks) {
    const int64_t rows = blocks_[task.block].n_rows();
    task.out = partial_at(next_partial, rows, padded_dim_);
    next_partial += partial_floats(rows, padded_dim_);
  }
  std::atomic<size_t> next{0};
  pool.run([&](int) {
    Scratch& scratch = thread_scratch(padded_dim_);
    for (size_t i = next++; i < tasks.size(); i = next++) {
      load_queries(blocks_[tasks[i].block], scratch);
      attend(blocks_[tasks[i].block], tasks[i].chunk, scratch, tasks[i].out);
    }
  });
  Scratch& scratch = thread_scratch(padded_dim_);
  for (size_t i = 0; i < tasks.size();) {
    const size_t b = tasks[i].block;
    reset(scratch.total, blocks_[b].n_rows());
    for (; i < tasks.size() && tasks[i].block == b; ++i) {
      merge(tasks[i].out, blocks_[b].n_rows(), scratch.total);
    }
    store(blocks_[b], scratch.total);
  }
}

void Attention::run(ThreadPool& pool) {
  const auto n_blocks = static_cast<int64_t>(blocks_.size());
  if (n_blocks == 0) return;
  const bool split = pool.n_threads() > 1 &&
                     n_blocks < 4 * static_cast<int64_t>(pool.n_threads()) &&
                     std::any_of(blocks_.begin(), blocks_.end(), [](const Block& block) {
                       return block.end_chunk() - block.first_chunk() > 1;
                     });
  if (split) {
    run_split(pool);
  } else {
    run_whole(pool);
  }
}

}  // namespace

void paged_attention(const AttentionArgs& args, ThreadPool& pool, Isa isa) {
  Attention(args, isa).run(pool);
}

void write_kv(TensorView k,
              TensorView v,
              const KvView& kv,
              std::span<const int64_t> slots,
              ThreadPool& pool) {
  CHECK(k.shape() == v.shape() && k.dtype() == kv.dtype && v.dtype() == kv.dtype);
  const auto n_rows = static_cast<int64_t>(slots.size());
  if (n_rows == 0) return;
  CHECK(k.n_rows() == n_rows && k.row_elements() == kv.n_kv_heads * kv.head_dim);
  const int64_t head_bytes = dtype_bytes(kv.dtype, kv.head_dim);
  const auto* k_in = static_cast<const std::byte*>(k.data());
  const auto* v_in = static_cast<const std::byte*>(v.data());
  pool.parallel_for(n_rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t slot = slots[static_cast<size_t>(row)];
      CHECK(slot >= 0 && slot < kv.n_blocks * kv.block_size);
      const int64_t block = slot / kv.block_size;
      for (int64_t h = 0; h < kv.n_kv_heads; ++h) {
        const int64_t from = (row * kv.n_kv_heads + h) * head_bytes;
        const int64_t to =
            ((block * kv.n_kv_heads + h) * kv.block_size + slot % kv.block_size) * head_bytes;
        std::memcpy(
            static_cast<std::byte*>(kv.k) + to, k_in + from, static_cast<size_t>(head_bytes));
        std::memcpy(
            static_cast<std::byte*>(kv.v) + to, v_in + from, static_cast<size_t>(head_bytes));
      }
    }
  });
}

}  // namespace testbed::cpu
