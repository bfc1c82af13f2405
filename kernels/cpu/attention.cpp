// Attention's outer loops: who computes which block of query rows over which chunk of keys.
//
// A chunk is 512 key indices (attention_keys.hpp). A row's result is the merge, in order, of its
// chunks' partial results, so it depends neither on the other rows of the batch nor on the number
// of threads.
#include "kernels/cpu/attention.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/attention_blocks.hpp"
#include "kernels/cpu/attention_partial.hpp"
#include "kernels/cpu/attention_scratch.hpp"
#include "kernels/cpu/elementwise_types.hpp"

namespace testbed::cpu {
namespace {

constexpr int64_t chunk_keys = attention_chunk_keys;
constexpr int64_t padded(int64_t dim) { return (dim + 31) / 32 * 32; }

class Attention {
 public:
  Attention(const AttentionArgs& args, int n_threads, Isa isa);

  void run(ThreadPool& pool);

 private:
  void check_args() const;
  void make_blocks(int64_t most_kv_heads);
  void run_whole(ThreadPool& pool);
  void run_split(ThreadPool& pool);
  void load_queries(const AttentionBlock& block, AttentionScratch& scratch) const;
  void attend(const AttentionBlock& block,
              int64_t chunk,
              AttentionScratch& scratch,
              const Partial& out) const;
  void store(const AttentionBlock& block, const Partial& total) const;
  void store_row(float* in, float factor, int64_t row) const;
  void add(const Partial& part, int64_t n_rows, const Partial& total) const {
    merge(part, n_rows, padded_v_dim_, elementwise_.f32, total);
  }
  float normaliser(float maximum, float sum, int64_t head) const;
  // In q's [rows, n_heads].
  int64_t q_row(const AttentionBlock& block, int64_t row) const {
    return (block.first_row + block.query(row)) * n_heads_ + block.head(row);
  }

  const AttentionArgs& args_;
  int64_t n_heads_ = 0;
  int64_t head_dim_ = 0;
  int64_t v_dim_ = 0;
  int64_t padded_dim_ = 0;
  int64_t padded_v_dim_ = 0;
  void (*kernel_)(const AttentionChunk&) = nullptr;
  const ElementwiseKernels& elementwise_;
  HeadGroups groups_;
  std::vector<SequenceKeys> keys_;  // by sequence
  std::vector<AttentionBlock> blocks_;
};

void (*kernel_for(Isa isa, DType dtype))(const AttentionChunk&) {
  if (isa == Isa::avx512_bf16 && dtype == DType::BF16) return attend_chunk_avx512_bf16;
  if (isa >= Isa::avx512) return attend_chunk_avx512;
  return isa == Isa::avx2 ? attend_chunk_avx2 : attend_chunk_portable;
}

Attention::Attention(const AttentionArgs& args, int n_threads, Isa isa)
    : args_(args),
      n_heads_(args.q.shape()[1]),
      head_dim_(args.kv.head_dim),
      v_dim_(args.kv.v_dim),
      padded_dim_(padded(head_dim_)),
      padded_v_dim_(padded(v_dim_)),
      kernel_(kernel_for(isa, args.kv.dtype)),
      elementwise_(kernels_for(isa)),
      groups_(args.head_to_kv, args.kv.n_kv_heads) {
  check_args();
  // Each thread has its KV heads, where the chunks of a context are too few to go round.
  make_blocks(isa >= Isa::avx512 ? std::max<int64_t>(1, args.kv.n_kv_heads / n_threads) : 1);
}

void Attention::check_args() const {
  const TensorView q = args_.q;
  const KvView& kv = args_.kv;
  CHECK(q.dtype() == DType::F32 || q.dtype() == DType::BF16);
  CHECK(q.shape() == Shape({q.n_rows(), n_heads_, head_dim_}) && kv.dtype == q.dtype());
  CHECK(args_.out.n_elements() == q.n_rows() * n_heads_ * v_dim_);
  CHECK(head_dim_ > 0 && head_dim_ % 2 == 0 && v_dim_ > 0);
  CHECK(kv.v != nullptr || v_dim_ <= head_dim_);
  CHECK(kv.block_size > 0 && args_.window >= 0 && args_.softcap >= 0);
  CHECK(static_cast<int64_t>(args_.head_to_kv.size()) == n_heads_);
  CHECK(args_.sinks.empty() || args_.sinks.n_elements() == n_heads_);
  if (args_.lse.empty()) {
    CHECK(args_.out.dtype() == q.dtype());
  } else {
    CHECK(args_.out.dtype() == DType::F32 && args_.lse.n_elements() == q.n_rows() * n_heads_);
  }
}

void Attention::make_blocks(int64_t most_kv_heads) {
  keys_.reserve(args_.sequences.size());
  blocks_.reserve(args_.sequences.size() * static_cast<size_t>(groups_.n_kv_heads()));
  for (const AttentionSequence& sequence : args_.sequences) {
    CHECK(sequence.first_row + sequence.n_rows <= args_.q.n_rows());
    keys_.emplace_back(sequence, args_.window, chunk_keys);
    add_attention_blocks(sequence, keys_.back(), groups_, most_kv_heads, blocks_);
  }
  // Longest first, so that the threads end together.
  const auto longer = [](const AttentionBlock& a, const AttentionBlock& b) {
    return a.work() > b.work();
  };
  if (!std::is_sorted(blocks_.begin(), blocks_.end(), longer)) {
    std::stable_sort(blocks_.begin(), blocks_.end(), longer);
  }
}

void Attention::load_queries(const AttentionBlock& block, AttentionScratch& scratch) const {
  for (int64_t row = 0; row < block.n_rows(); ++row) {
    float* out = scratch.q + row * padded_dim_;
    const int64_t offset = q_row(block, row) * head_dim_;
    if (args_.q.dtype() == DType::F32) {
      std::copy_n(args_.q.as<float>() + offset, head_dim_, out);
    } else {
      const bf16* in = args_.q.as<bf16>() + offset;
      bf16* as_is = scratch.q_bf16 + row * padded_dim_;
      std::copy_n(in, head_dim_, as_is);
      std::fill(as_is + head_dim_, as_is + padded_dim_, bf16{});
      elementwise_.widen(in, out, head_dim_);
    }
    std::fill(out + head_dim_, out + padded_dim_, 0.0F);
  }
}

void Attention::attend(const AttentionBlock& block,
                       int64_t chunk,
                       AttentionScratch& scratch,
                       const Partial& out) const {
  const int64_t origin = chunk * chunk_keys;
  const int64_t first = std::max(block.seen.first, origin);
  const int64_t end = std::min(block.seen.end, origin + chunk_keys);
  const int64_t found_end = std::min(block.seen.end, origin + attention_pointer_keys);
  for (const std::byte** rows : {scratch.k_rows, scratch.v_rows}) {
    std::fill(rows, rows + (first - origin), nullptr);
    std::fill(rows + (found_end - origin), rows + attention_pointer_keys, nullptr);
  }
  block.keys->find({first, found_end},
                   args_.kv,
                   block.kv_head,
                   scratch.k_rows + (first - origin),
                   scratch.v_rows + (first - origin));
  const int64_t k_bytes = dtype_bytes(args_.kv.dtype, head_dim_);
  const int64_t v_bytes = args_.kv.v == nullptr ? k_bytes : dtype_bytes(args_.kv.dtype, v_dim_);
  int32_t first_key[attention_max_rows];
  int32_t end_key[attention_max_rows];
  const auto in_chunk = [&](int64_t key) {
    return static_cast<int32_t>(std::clamp<int64_t>(key - origin, 0, chunk_keys));
  };
  const int64_t n_rows = block.n_rows_of_kv_head();
  for (int64_t row = 0; row < n_rows; ++row) {
    const SequenceKeys::Range seen = block.keys->seen(block.first_query + block.query(row));
    first_key[row] = in_chunk(seen.first);
    end_key[row] = in_chunk(seen.end);
  }
  kernel_({.is_bf16 = args_.kv.dtype == DType::BF16,
           .head_dim = head_dim_,
           .v_dim = v_dim_,
           .padded_dim = padded_dim_,
           .padded_v_dim = padded_v_dim_,
           .n_rows = n_rows,
           .n_kv_heads = block.n_kv_heads,
           .k_head_bytes = args_.kv.block_size * k_bytes,
           .v_head_bytes = args_.kv.block_size * v_bytes,
           .scale = args_.scale,
           .softcap = args_.softcap,
           .q = scratch.q,
           .q_pairs = reinterpret_cast<const uint32_t*>(scratch.q_bf16),
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

// The factor that makes of an unnormalised output a mean; 0 without a visible key.
float Attention::normaliser(float maximum, float sum, int64_t head) const {
  if (sum == 0.0F) return 0.0F;
  if (args_.sinks.empty() || !args_.lse.empty()) return 1.0F / sum;
  const float sink = args_.sinks.as<float>()[head];
  const float top = std::max(maximum, sink);
  const float keep = std::exp(maximum - top);
  return keep / (sum * keep + std::exp(sink - top));
}

void Attention::store_row(float* in, float factor, int64_t row) const {
  elementwise_.f32.multiply(in, factor, v_dim_);
  if (args_.out.dtype() == DType::F32) {
    std::copy_n(in, v_dim_, args_.out.as<float>() + row * v_dim_);
  } else {
    elementwise_.narrow(in, args_.out.as<bf16>() + row * v_dim_, v_dim_);
  }
}

// Uses up total.
void Attention::store(const AttentionBlock& block, const Partial& total) const {
  for (int64_t r = 0; r < block.n_rows(); ++r) {
    const int64_t row = q_row(block, r);
    const float factor = normaliser(total.maximum[r], total.sum[r], row % n_heads_);
    store_row(total.out + r * padded_v_dim_, factor, row);
    // Without a visible key, -inf + log(0) = -inf.
    if (!args_.lse.empty()) {
      args_.lse.as<float>()[row] = total.maximum[r] + std::log(total.sum[r]);
    }
  }
}

void Attention::run_whole(ThreadPool& pool) {
  std::atomic<size_t> next{0};
  const auto work = [&](int) {
    AttentionScratch& scratch = thread_scratch(padded_dim_, padded_v_dim_);
    for (size_t i = next++; i < blocks_.size(); i = next++) {
      const AttentionBlock& block = blocks_[i];
      load_queries(block, scratch);
      reset(scratch.total, block.n_rows(), padded_v_dim_);
      for (int64_t chunk = block.first_chunk(); chunk < block.end_chunk(); ++chunk) {
        attend(block, chunk, scratch, scratch.chunk);
        add(scratch.chunk, block.n_rows(), scratch.total);
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
      n_floats += partial_floats(blocks_[b].n_rows(), padded_v_dim_);
    }
  }
  const Tensor partials(DType::F32, Shape{n_floats});
  float* next_partial = partials.as<float>();
  for (Task& task : tasks) {
    const int64_t rows = blocks_[task.block].n_rows();
    task.out = partial_at(next_partial, rows, padded_v_dim_);
    next_partial += partial_floats(rows, padded_v_dim_);
  }
  std::atomic<size_t> next{0};
  pool.run([&](int) {
    AttentionScratch& scratch = thread_scratch(padded_dim_, padded_v_dim_);
    for (size_t i = next++; i < tasks.size(); i = next++) {
      load_queries(blocks_[tasks[i].block], scratch);
      attend(blocks_[tasks[i].block], tasks[i].chunk, scratch, tasks[i].out);
    }
  });
  AttentionScratch& scratch = thread_scratch(padded_dim_, padded_v_dim_);
  size_t i = 0;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    reset(scratch.total, blocks_[b].n_rows(), padded_v_dim_);
    for (; i < tasks.size() && tasks[i].block == b; ++i) {
      add(tasks[i].out, blocks_[b].n_rows(), scratch.total);
    }
    store(blocks_[b], scratch.total);
  }
}

void Attention::run(ThreadPool& pool) {
  const auto n_blocks = static_cast<int64_t>(blocks_.size());
  if (n_blocks == 0) return;
  const bool split = pool.n_threads() > 1 &&
                     n_blocks < 4 * static_cast<int64_t>(pool.n_threads()) &&
                     std::any_of(blocks_.begin(), blocks_.end(), [](const AttentionBlock& block) {
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
  Attention(args, pool.n_threads(), isa).run(pool);
}

}  // namespace testbed::cpu
