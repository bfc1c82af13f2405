// Writes to the KV cache and copies of its blocks.
#include <cstring>

#include "kernels/cpu/attention.hpp"

namespace testbed::cpu {
namespace {

// Rows of x [rows, n_kv_heads, dim] to cache [n_blocks, n_kv_heads, block_size, dim].
void write_rows(TensorView x,
                int64_t dim,
                const KvView& kv,
                void* cache,
                std::span<const int64_t> slots,
                ThreadPool& pool) {
  const auto n_rows = static_cast<int64_t>(slots.size());
  CHECK(x.dtype() == kv.dtype && x.n_rows() == n_rows && x.row_elements() == kv.n_kv_heads * dim);
  const int64_t head_bytes = dtype_bytes(kv.dtype, dim);
  const auto* in = static_cast<const std::byte*>(x.data());
  auto* out = static_cast<std::byte*>(cache);
  pool.parallel_for(n_rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t slot = slots[static_cast<size_t>(row)];
      CHECK(slot >= -1 && slot < kv.n_blocks * kv.block_size);
      if (slot == -1) continue;
      const int64_t block = slot / kv.block_size;
      for (int64_t h = 0; h < kv.n_kv_heads; ++h) {
        const int64_t from = (row * kv.n_kv_heads + h) * head_bytes;
        const int64_t to =
            ((block * kv.n_kv_heads + h) * kv.block_size + slot % kv.block_size) * head_bytes;
        std::memcpy(out + to, in + from, static_cast<size_t>(head_bytes));
      }
    }
  });
}

}  // namespace

void write_kv(TensorView k,
              TensorView v,
              const KvView& kv,
              std::span<const int64_t> slots,
              ThreadPool& pool) {
  CHECK(v.empty() || kv.v != nullptr);
  if (slots.empty()) return;
  write_rows(k, kv.head_dim, kv, kv.k, slots, pool);
  if (kv.v != nullptr) write_rows(v, kv.v_dim, kv, kv.v, slots, pool);
}

void gather_blocks(const KvView& from,
                   std::span<const int32_t> blocks,
                   const KvView& to,
                   ThreadPool& pool) {
  const auto n_blocks = static_cast<int64_t>(blocks.size());
  CHECK(from.block_size == to.block_size && from.dtype == to.dtype && n_blocks <= to.n_blocks);
  CHECK(from.n_kv_heads == to.n_kv_heads && from.head_dim == to.head_dim);
  CHECK((from.v == nullptr) == (to.v == nullptr) && from.v_dim == to.v_dim);
  const auto copy = [&](const void* in, void* out, int64_t dim) {
    const int64_t n_bytes = dtype_bytes(from.dtype, from.n_kv_heads * from.block_size * dim);
    pool.parallel_for(n_blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t block = blocks[static_cast<size_t>(i)];
        CHECK(block >= 0 && block < from.n_blocks);
        std::memcpy(static_cast<std::byte*>(out) + i * n_bytes,
                    static_cast<const std::byte*>(in) + block * n_bytes,
                    static_cast<size_t>(n_bytes));
      }
    });
  };
  copy(from.k, to.k, from.head_dim);
  if (from.v != nullptr) copy(from.v, to.v, from.v_dim);
}

}  // namespace testbed::cpu
