// The loops around the register tiles: threads split the panels of all matrices; within a thread,
// blocks of rows of x, groups of panels, blocks of k (a group's block of W stays in L2), tiles of
// rows (a tile's block of x stays in L1), panels.
#include "kernels/cpu/linear.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/base/index_range.hpp"
#include "kernels/cpu/elementwise_types.hpp"
#include "kernels/cpu/linear_kernels.hpp"
#include "kernels/cpu/linear_quantised.hpp"
#include "kernels/cpu/linear_x.hpp"
#include "kernels/cpu/packed_quantised.hpp"

namespace testbed::cpu {
namespace {

constexpr int64_t panel_rows = PackedMatrix::panel_rows;
constexpr int64_t max_block_rows = 528;  // of x, packed at a time
constexpr int64_t max_group_panels = 16;
constexpr int64_t block_bytes_of_panel = int64_t{32} * 1024;
constexpr int64_t quantised_block_cols = 2048;  // whole segments of every format
// Of weights that are expanded to f32: for few rows the expanded block stays in L1.
constexpr int64_t expanded_block_cols = 512;
constexpr int64_t streamed_block_cols = 64;
constexpr int64_t streamed_group_panels = 4;
constexpr int64_t max_stream_panels = 4;

LinearKernel f32_kernel(Isa isa, DType w_dtype) {
  if (isa >= Isa::avx512) return avx512_kernel(w_dtype);
  return isa == Isa::avx2 ? avx2_kernel(w_dtype) : portable_kernel(w_dtype);
}

LinearKernel quantised_kernel(Isa isa, DType x_dtype, const WeightFormat& format) {
  const bool is_fp8 = format.coding == WeightCoding::fp8;
  if (x_dtype == DType::BF16 && !is_fp8) {
    if (isa >= Isa::avx512_vnni) return vnni_kernel(format);
    return isa >= Isa::avx2 ? avx2_int_kernel(format) : portable_int_kernel();
  }
  if (x_dtype == DType::BF16 && isa == Isa::avx512_bf16) return avx512_bf16_fp8_kernel();
  LinearKernel kernel = f32_kernel(isa, DType::F32);
  kernel.expand = isa >= Isa::avx512 ? avx512_expand
                  : isa == Isa::avx2 ? avx2_expand
                                     : portable_expand;
  return kernel;
}

LinearKernel kernel_for(Isa isa, DType x_dtype, const PackedMatrix& w) {
  if (w.is_quantised()) return quantised_kernel(isa, x_dtype, w.format());
  if (isa == Isa::avx512_bf16 && x_dtype == DType::BF16 && w.dtype() == DType::BF16) {
    return avx512_bf16_kernel();
  }
  return f32_kernel(isa, w.dtype());
}

void portable_store(const float* c, const float* bias, int64_t n, void* y, DType dtype) {
  for (int64_t i = 0; i < n; ++i) {
    const float sum = bias == nullptr ? c[i] : c[i] + bias[i];
    if (dtype == DType::F32) {
      static_cast<float*>(y)[i] = sum;
    } else {
      static_cast<bf16*>(y)[i] = to_bf16(sum);
    }
  }
}

LinearStore store_for(Isa isa) {
  if (isa >= Isa::avx512) return avx512_store;
  return isa == Isa::avx2 ? avx2_store : portable_store;
}

// One matrix and a block of rows of x.
class Product {
 public:
  Product(const LinearJob& job, DType x_dtype, Isa isa)
      : job_(job), w_(*job.w), kernel_(kernel_for(isa, x_dtype, w_)), store_(store_for(isa)) {
    k_ = kernel_.expand == nullptr ? w_.padded_cols() : w_.n_cols();
  }

  const LinearKernel& kernel() const { return kernel_; }
  int64_t n_panels() const { return w_.n_panels(); }
  int64_t n_bytes() const { return w_.n_panels() * w_.panel_bytes(); }

  void take_rows(const PackedX& x, int64_t first_row) {
    x_ = &x;
    first_row_ = first_row;
  }

  // Of these panels, all rows of x.
  void run(int64_t begin, int64_t end) const {
    if (streams() && kernel_.expand == nullptr && k_ > 0) {
      run_streams(begin, end);
      return;
    }
    const int64_t step = group_panels();
    for (int64_t group = begin; group < end; group += step) {
      run_group(group, std::min(group + step, end));
    }
  }

 private:
  bool streams() const { return x_->tiles().n == 1; }
  int64_t group_panels() const {
    return kernel_.expand != nullptr && streams() ? streamed_group_panels : max_group_panels;
  }

  int64_t block_cols() const {
    if (kernel_.expand != nullptr) return streams() ? streamed_block_cols : expanded_block_cols;
    // One tile of rows meets each weight once: nothing to keep, so k is not cut.
    if (streams()) return std::max<int64_t>(k_, 1);
    if (w_.is_quantised()) return quantised_block_cols;
    return block_bytes_of_panel / (panel_rows * dtype_bytes(w_.dtype(), 1));
  }

  // Of a k block in its panel.
  int64_t offset_of(int64_t k) const {
    if (!w_.is_quantised()) return k * panel_rows * dtype_bytes(w_.dtype(), 1);
    const PackedLayout& layout = w_.layout();
    return layout.one_group() ? layout.code_offset(k)
                              : layout.segment_offset(k / layout.group_cols);
  }

  static float* sums(int64_t n) {
    static thread_local std::vector<float> memory;
    if (memory.size() < static_cast<size_t>(n)) memory.resize(static_cast<size_t>(n));
    return memory.data();
  }

  // One tile of rows, which meets each weight once. A tile's panels lie far apart, so that each is
  // the next piece of a long stream: where a stream ends, the prefetchers have fetched in vain and
  // must find the next. (Of the read loop, one thread, a loop over int4: one stream 0.87, two and
  // four neighbours 0.85-0.95, two and four far apart 1.03-1.10.)
  void run_streams(int64_t begin, int64_t end) const {
    LinearTile tile{};
    x_->operand(0, 0, tile);
    tile.n_cols = k_;
    tile.first = true;
    tile.last = true;
    tile.layout = &w_.layout();
    // Even of one panel alone some tiles write two.
    tile.c_stride = max_stream_panels * panel_rows;
    tile.c = sums(tile.n_rows * tile.c_stride);
    while (begin < end) {
      tile.n_panels = kernel_.panels_for(tile.n_rows);
      while (begin + tile.n_panels > end) tile.n_panels /= 2;
      const int64_t stream_panels = (end - begin) / tile.n_panels;
      tile.panel_bytes = stream_panels * w_.panel_bytes();
      for (int64_t i = begin; i < begin + stream_panels; ++i) {
        tile.w = w_.panel(i) + offset_of(0);
        tile.row_scales = w_.panel(i);
        kernel_.tile(tile);
        for (int64_t s = 0; s < tile.n_panels; ++s) {
          const int64_t panel = i + s * stream_panels;
          store_group(panel, panel + 1, tile.c + s * panel_rows, tile.c_stride);
        }
      }
      begin += tile.n_panels * stream_panels;
    }
  }

  // Panels [begin, end) of one group, all rows of the block, all of k.
  void run_group(int64_t begin, int64_t end) const {
    const int64_t c_stride = group_panels() * panel_rows;
    const int64_t n_sums = x_->tiles().m * c_stride;
    float* c = sums(n_sums);
    if (k_ == 0) std::fill(c, c + n_sums, 0.0F);
    const int64_t k_block = block_cols();
    for (int64_t k_begin = 0; k_begin < k_; k_begin += k_block) {
      LinearTile tile{};
      tile.n_cols = std::min(k_block, k_ - k_begin);
      tile.first = k_begin == 0;
      tile.last = k_begin + tile.n_cols == k_;
      tile.c_stride = c_stride;
      tile.layout = &w_.layout();
      run_block(begin, end, k_begin, c, tile);
    }
    store_group(begin, end, c, c_stride);
  }

  // One block of k: tile has what all its tiles share.
  void run_block(int64_t begin, int64_t end, int64_t k_begin, float* c, LinearTile& tile) const {
    const std::byte* w = w_.panel(begin) + (kernel_.expand == nullptr ? offset_of(k_begin) : 0);
    tile.panel_bytes = w_.panel_bytes();
    if (kernel_.expand != nullptr) {
      w = expanded(begin, end, k_begin, tile.n_cols);
      tile.panel_bytes = tile.n_cols * panel_rows * 4;
    }
    const RowTiles& tiles = x_->tiles();
    for (int64_t t = 0; t < tiles.n; ++t) {
      x_->operand(t, k_begin, tile);
      for (int64_t panel = begin; panel < end; panel += tile.n_panels) {
        tile.n_panels = kernel_.panels_for(tile.n_rows);
        while (panel + tile.n_panels > end) tile.n_panels /= 2;
        // The first pass over a tile brings the next tile's x nearer, the last tile the next block
        // of W.
        const bool first_pass = panel == begin && t + 1 < tiles.n;
        tile.prefetch_x = first_pass ? x_->tile_bytes(t) : 0;
        const bool last_tile =
            tiles.n > 1 && t + 1 == tiles.n && !tile.last && kernel_.expand == nullptr;
        tile.prefetch_w = last_tile ? offset_of(k_begin + tile.n_cols) - offset_of(k_begin) : 0;
        tile.w = w + (panel - begin) * tile.panel_bytes;
        tile.row_scales = w_.panel(panel);
        tile.c = c + tiles.begin(t) * tile.c_stride + (panel - begin) * panel_rows;
        kernel_.tile(tile);
      }
    }
  }

  // The block's weights as F32 panels [k][16].
  const std::byte* expanded(int64_t begin, int64_t end, int64_t k_begin, int64_t n_cols) const {
    static thread_local Tensor memory;
    const int64_t panel_elements = n_cols * panel_rows;
    if (memory.n_elements() < (end - begin) * panel_elements) {
      memory = Tensor(DType::F32, {max_group_panels * panel_elements});
    }
    for (int64_t panel = begin; panel < end; ++panel) {
      float* to = memory.as<float>() + (panel - begin) * panel_elements;
      for_each_piece(w_.layout(), w_.panel(panel), {k_begin, k_begin + n_cols}, [&](auto& group) {
        kernel_.expand(w_.format(), group, to + (group.first_col - k_begin) * panel_rows);
      });
    }
    return static_cast<const std::byte*>(memory.data());
  }

  void store_group(int64_t begin, int64_t end, const float* c, int64_t c_stride) const {
    const int64_t n = w_.n_rows();
    const int64_t first = begin * panel_rows;
    const int64_t count = std::min(end * panel_rows, n) - first;
    const float* bias = job_.bias == nullptr ? nullptr : job_.bias + first;
    for (int64_t r = 0; r < x_->tiles().m; ++r) {
      auto* to = static_cast<std::byte*>(job_.y.data()) +
                 dtype_bytes(job_.y.dtype(), (first_row_ + r) * n + first);
      store_(c + r * c_stride, bias, count, to, job_.y.dtype());
    }
  }

  LinearJob job_;
  const PackedMatrix& w_;
  LinearKernel kernel_;
  LinearStore store_;
  int64_t k_ = 0;
  const PackedX* x_ = nullptr;
  int64_t first_row_ = 0;
};

// Threads' shares are multiples of what a tile takes at once.
int64_t granule_panels(int64_t n_panels, int64_t n_threads) {
  return n_panels >= 16 * n_threads ? 4 : 2;
}

// The products' panels, laid end to end by their bytes and cut into equal shares.
class Shares {
 public:
  Shares(std::span<const Product> products, int n_threads)
      : products_(products), n_threads_(n_threads) {
    for (const Product& product : products) {
      n_bytes_ += product.n_bytes();
      n_panels_ += product.n_panels();
    }
  }
  int64_t n_panels() const { return n_panels_; }

  void run(int64_t thread) const {
    int64_t before = 0;
    for (const Product& product : products_) {
      const int64_t begin = cut(product, before, thread);
      const int64_t end = cut(product, before, thread + 1);
      if (begin < end) product.run(begin, end);
      before += product.n_bytes();
    }
  }

 private:
  // The first panel of the product that is not of the threads before this one.
  int64_t cut(const Product& product, int64_t before, int64_t thread) const {
    const int64_t n = product.n_panels();
    if (thread == n_threads_) return n;
    const int64_t granule = granule_panels(n, n_threads_);
    const int64_t n_bytes = n_bytes_ * thread / n_threads_ - before;
    const int64_t granule_bytes = std::max<int64_t>(granule * product.n_bytes() / n, 1);
    return std::clamp<int64_t>((n_bytes + granule_bytes / 2) / granule_bytes * granule, 0, n);
  }

  std::span<const Product> products_;
  int64_t n_threads_;
  int64_t n_bytes_ = 0;
  int64_t n_panels_ = 0;
};

void run_products(std::span<const Product> products, ThreadPool& pool) {
  const Shares shares(products, pool.n_threads());
  if (pool.n_threads() == 1 || shares.n_panels() == 1) {
    for (const Product& product : products) product.run(0, product.n_panels());
    return;
  }
  pool.run([&](int thread) { shares.run(thread); });
}

// The activations of these columns, from the gates and ups that their thread has just stored.
void activate(
    Activation activation, TensorView gate_up, IndexRange columns, TensorView out, Isa isa) {
  with_type(out.dtype(), [&]<typename T>(T*) {
    const auto run = kernels_of<T>(isa).gated[static_cast<size_t>(activation)];
    const int64_t f = out.row_elements();
    for (int64_t r = 0; r < out.n_rows(); ++r) {
      const T* gate = gate_up.as<T>() + 2 * r * f + columns.begin;
      run(gate, gate + f, out.as<T>() + r * f + columns.begin, columns.size());
    }
  });
}

// Calls run(products, rows) for each block of rows of x, which it has packed for the products: of
// those jobs that have results.
template <typename Run>
void for_row_blocks(
    std::span<const LinearJob> jobs, TensorView x, ThreadPool& pool, Isa isa, const Run& run) {
  CHECK(x.shape().rank() == 2 && (x.dtype() == DType::F32 || x.dtype() == DType::BF16));
  CHECK(isa <= best_isa());
  static thread_local std::array<PackedX, 3> packed;  // by XPacking
  std::vector<Product> products;
  products.reserve(jobs.size());
  for (const LinearJob& job : jobs) {
    CHECK(job.w->n_cols() == x.shape()[1] && job.y.shape().rank() == 2);
    CHECK(job.y.shape()[1] == job.w->n_rows() && job.y.shape()[0] == x.shape()[0]);
    CHECK(job.y.dtype() == DType::F32 || job.y.dtype() == DType::BF16);
    if (job.y.n_elements() > 0) products.emplace_back(job, x.dtype(), isa);
  }
  if (products.empty()) return;
  const int64_t n_blocks = (x.n_rows() + max_block_rows - 1) / max_block_rows;
  for (int64_t block = 0; block < n_blocks; ++block) {
    const IndexRange rows{x.n_rows() * block / n_blocks, x.n_rows() * (block + 1) / n_blocks};
    const TensorView x_rows = x.rows(rows.begin, rows.size());
    std::array<bool, 3> is_packed{};
    for (Product& product : products) {
      const auto kind = static_cast<size_t>(product.kernel().x_packing);
      if (!is_packed[kind]) {
        packed[kind].pack(x_rows, product.kernel().x_packing, product.kernel().max_rows, pool, isa);
        is_packed[kind] = true;
      }
      product.take_rows(packed[kind], rows.begin);
    }
    run(products, rows);
  }
}

}  // namespace

void linear(std::span<const LinearJob> jobs, TensorView x, ThreadPool& pool, Isa isa) {
  for_row_blocks(jobs, x, pool, isa, [&](std::span<const Product> products, IndexRange) {
    run_products(products, pool);
  });
}

void linear_gated(const LinearJob& job,
                  TensorView x,
                  Activation activation,
                  TensorView out,
                  ThreadPool& pool,
                  Isa isa) {
  const int64_t f = job.w->n_rows() / 2;
  CHECK(can_gate(*job.w) && out.dtype() == job.y.dtype());
  CHECK(out.n_elements() == x.n_rows() * f);
  const TensorView all = out.reshaped({x.n_rows(), f});
  const int64_t n_panels = f / panel_rows;
  const int64_t granule = granule_panels(n_panels, pool.n_threads());
  for_row_blocks(
      std::span(&job, 1), x, pool, isa, [&](std::span<const Product> products, IndexRange rows) {
        const Product& product = products.front();
        const TensorView gate_up = job.y.rows(rows.begin, rows.size());
        const TensorView gated = all.rows(rows.begin, rows.size());
        pool.parallel_for(n_panels, granule, [&](int64_t begin, int64_t end) {
          product.run(begin, end);
          product.run(n_panels + begin, n_panels + end);
          activate(activation, gate_up, {begin * panel_rows, end * panel_rows}, gated, isa);
        });
      });
}

void linear(const PackedMatrix& w,
            TensorView x,
            const float* bias,
            TensorView y,
            ThreadPool& pool,
            Isa isa) {
  const LinearJob job{&w, bias, y};
  linear(std::span(&job, 1), x, pool, isa);
}

}  // namespace testbed::cpu
