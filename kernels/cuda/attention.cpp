#include "kernels/cuda/attention.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cuda/attention_kernels.hpp"
#include "kernels/cuda/attention_tables.hpp"

namespace testbed::cuda {
namespace {

// A sequence of fewer rows than this is read once per row rather than by tiles, which are too few
// to fill the device.
constexpr int64_t min_tiled_rows = 5;
constexpr int64_t most_keys_per_split = 8192;
constexpr int64_t max_splits = 128;
constexpr double log2_e = 1.4426950408889634;

using Attend = void (*)(Queue&, const AttentionCall&, const AttentionLaunch&);

// Which kernels a call takes.
struct Kernels {
  Attend single = attend_rows;       // of sequences with few rows
  int64_t single_heads = 0;          // of a group
  int64_t blocks_per_processor = 2;  // of `single`, to fill the device
  int64_t most_blocks = 32;          // per processor, where splits make them so many
  Attend tiled = nullptr;
};
Kernels choose(const KvView& kv, int64_t heads_per_kv_head) {
  Kernels kernels{.single_heads = row_heads(kv.dtype, kv.head_dim, kv.v_dim)};
  const bool grouped = heads_per_kv_head > 2;  // fewer leave most of a product's rows idle
  if (can_attend_tiles(kv.dtype, kv.head_dim, kv.v_dim)) {
    kernels.tiled = attend_tiles;
    if (grouped) {
      kernels.single = attend_groups;
      kernels.single_heads = group_heads;
    }
  } else if (can_attend_wide(kv)) {
    kernels.tiled = attend_wide;
    if (grouped) {
      kernels.single = attend_wide;
      kernels.single_heads = tile_rows;
      kernels.blocks_per_processor = 1;
      kernels.most_blocks = 4;
    }
  }
  return kernels;
}

// Tiles of one row, for a kernel that takes tiles.
std::vector<AttentionTile> single_tiles(const AttentionTables& tables) {
  std::vector<AttentionTile> tiles;
  tiles.reserve(static_cast<size_t>(tables.n_single_rows));
  for (int32_t i = 0; i < tables.n_single_rows; ++i) {
    const AttentionRow& row = tables.rows[static_cast<size_t>(i)];
    tiles.push_back({i, 1, row.first_key, row.end_key, row.first_key, row.end_key});
  }
  return tiles;
}

int32_t shift_of(int64_t block_size) {
  const auto n = static_cast<uint64_t>(block_size);
  return std::has_single_bit(n) ? std::countr_zero(n) : -1;
}

int64_t count(const std::vector<HeadGroup>& groups) { return static_cast<int64_t>(groups.size()); }

void check_arguments(
    TensorView q, const KvView& kv, const AttentionParams& params, TensorView out, TensorView lse) {
  CHECK(q.dtype() == kv.dtype && (kv.dtype == DType::F32 || kv.dtype == DType::BF16));
  CHECK(out.dtype() == (lse.empty() ? q.dtype() : DType::F32));
  CHECK(kv.block_size > 0 && kv.head_dim > 0 && kv.v_dim > 0 && params.window >= 0);
  CHECK(kv.v != nullptr || kv.v_dim <= kv.head_dim);
}

}  // namespace

// How a call is cut.
namespace {

PagedKv paged(Arguments& arguments, const KvView& kv, const AttentionTables& tables) {
  return {.k = kv.k,
          .v = kv.v,
          .blocks = arguments.put(tables.blocks),
          .block_tokens = tables.has_holes ? arguments.put(tables.block_tokens) : nullptr,
          .block_size = static_cast<int32_t>(kv.block_size),
          .block_shift = shift_of(kv.block_size),
          .n_kv_heads = static_cast<int32_t>(kv.n_kv_heads),
          .head_dim = static_cast<int32_t>(kv.head_dim),
          .v_dim = static_cast<int32_t>(kv.v_dim),
          .unused = 0};
}

}  // namespace

// How the rows of some sequences are attended to on heads of one shape, and where the device finds
// that: the same for all layers of a section that have these.
struct AttentionPlan {
  AttentionPlan(Arguments& arguments, const KvView& kv, const AttentionParams& params)
      : id(params.id),
        window(params.window),
        shape(kv.shape()),
        block_size(kv.block_size),
        head_to_kv(params.head_to_kv.begin(), params.head_to_kv.end()),
        tiled(head_groups(params.head_to_kv, kv.n_kv_heads, tile_rows)),
        kernels(choose(kv, tiled.largest)),
        single(head_groups(params.head_to_kv, kv.n_kv_heads, kernels.single_heads)),
        queries_per_tile(tile_rows / tiled.largest),
        tables(attention_tables(
            params.sequences,
            kv,
            params.window,
            kernels.tiled == nullptr ? TileRule{} : TileRule{min_tiled_rows, queries_per_tile})),
        pages(paged(arguments, kv, tables)),
        rows(arguments.put(tables.rows)),
        heads(arguments.put(single.heads)) {}
  bool is_of(const KvView& kv, const AttentionParams& params) const {
    const KvShape other = kv.shape();
    return id == params.id && window == params.window && block_size == kv.block_size &&
           shape.n_kv_heads == other.n_kv_heads && shape.head_dim == other.head_dim &&
           shape.v_dim == other.v_dim && shape.dtype == other.dtype &&
           shape.v_in_k == other.v_in_k &&
           std::equal(head_to_kv.begin(),
                      head_to_kv.end(),
                      params.head_to_kv.begin(),
                      params.head_to_kv.end());
  }

  int64_t id;
  int64_t window;
  KvShape shape;
  int64_t block_size;
  std::vector<int32_t> head_to_kv;
  HeadGroups tiled;
  Kernels kernels;
  HeadGroups single;
  int64_t queries_per_tile;
  AttentionTables tables;
  PagedKv pages;  // of the layer that it was made for; k and v are each layer's own
  decltype(AttentionCall::rows) rows;
  decltype(AttentionCall::heads) heads;
};

namespace {

void attend_tiled(Queue& queue, const KvView& kv, const AttentionPlan& plan, AttentionCall call) {
  CHECK(plan.kernels.tiled != nullptr);
  call.groups = queue.arguments().put(plan.tiled.groups);
  call.tiles = queue.arguments().put(plan.tables.tiles);
  call.n_splits = 1;
  plan.kernels.tiled(queue,
                     call,
                     {kv.dtype,
                      static_cast<int64_t>(plan.tables.tiles.size()),
                      count(plan.tiled.groups),
                      plan.tiled.largest,
                      plan.queries_per_tile * plan.tiled.largest});
}

// Of each row's keys: enough to fill the device, and so many that one long context among short ones
// is shared out. Calls of a replayed section must not differ from step to step: it depends on the
// number of rows, the heads and the power of two above the longest context. n_blocks: without
// splits.
int64_t splits(const Kernels& kernels, int64_t n_processors, int64_t n_blocks, int64_t longest) {
  const auto bucket = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest)));
  const int64_t filling = (kernels.blocks_per_processor * n_processors + n_blocks - 1) / n_blocks;
  const int64_t sharing =
      std::min(bucket / most_keys_per_split, kernels.most_blocks * n_processors / n_blocks);
  const int64_t most = std::clamp<int64_t>(bucket / min_keys_per_split, 1, max_splits);
  return std::clamp<int64_t>(std::max(filling, sharing), 1, most);
}

}  // namespace

Attention::~Attention() = default;

Attention::Attention(Queue& queue) : queue_(queue) {
  int device = 0;
  int n = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  n_processors_ = n;
}

const AttentionPlan& Attention::plan_of(const KvView& kv, const AttentionParams& params) {
  const int64_t section = queue_.section_number();
  if (section != section_ || section == 0 || params.id == 0) plans_.clear();
  section_ = section;
  for (const std::unique_ptr<AttentionPlan>& plan : plans_) {
    if (plan->is_of(kv, params)) return *plan;
  }
  return *plans_.emplace_back(std::make_unique<AttentionPlan>(queue_.arguments(), kv, params));
}

void Attention::attend(
    TensorView q, const KvView& kv, const AttentionParams& params, TensorView out, TensorView lse) {
  check_arguments(q, kv, params, out, lse);
  if (q.empty()) return;
  const AttentionPlan& plan = plan_of(kv, params);
  AttentionCall call{};
  call.q = q.data();
  call.out = out.data();
  call.lse = lse.empty() ? nullptr : lse.as<float>();
  call.kv = plan.pages;
  call.kv.k = kv.k;
  call.kv.v = kv.v;
  call.rows = plan.rows;
  call.heads = plan.heads;
  call.sinks = params.sinks.empty() || !lse.empty() ? nullptr : params.sinks.as<float>();
  call.n_heads = static_cast<int32_t>(params.head_to_kv.size());
  call.out_is_f32 = out.dtype() == DType::F32 ? 1 : 0;
  call.scale = static_cast<float>(static_cast<double>(params.scale) * log2_e);
  call.softcap = static_cast<float>(static_cast<double>(params.softcap) * log2_e);
  if (plan.tables.n_single_rows > 0) attend_single(kv, plan, call);
  if (!plan.tables.tiles.empty()) attend_tiled(queue_, kv, plan, call);
}

void Attention::attend_single(const KvView& kv, const AttentionPlan& plan, AttentionCall call) {
  const int64_t n = plan.tables.n_single_rows;
  const HeadGroups& heads = plan.single;
  const int64_t n_blocks = n * count(heads.groups);
  const int64_t n_splits = splits(plan.kernels, n_processors_, n_blocks, plan.tables.longest);
  // Where rows are split, n_blocks * n_splits is less than twice the blocks that fill the device,
  // or at most most_blocks of them.
  const int64_t n_most_blocks =
      std::max(2 * plan.kernels.blocks_per_processor, plan.kernels.most_blocks) * n_processors_;
  const int64_t per_result = kv.v_dim + 2;
  const int64_t n_most = n_most_blocks * heads.largest * per_result;
  if (scratch_.n_elements() < n_most) {
    queue_.retire(std::exchange(scratch_, device_tensor(DType::F32, {n_most})));
  }
  call.groups = queue_.arguments().put(heads.groups);
  call.partial = scratch_.as<float>();
  call.n_rows = static_cast<int32_t>(n);
  // A batch that fills the device has no splits, however large it is, and takes no scratch.
  CHECK(n_splits == 1 || n * call.n_heads * n_splits * per_result <= scratch_.n_elements());
  call.n_splits = static_cast<int32_t>(n_splits);
  if (plan.kernels.single == attend_wide) {
    call.tiles = queue_.arguments().put(single_tiles(plan.tables));
  }
  plan.kernels.single(
      queue_, call, {kv.dtype, n, count(heads.groups), heads.largest, heads.largest});
  if (call.n_splits > 1) merge_splits(queue_, call);
}

}  // namespace testbed::cuda
