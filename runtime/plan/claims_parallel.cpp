// Claims: attention's accesses, all-reduces, bubbles, links.
#include "kernels/attention_cost.hpp"
#include "kernels/base/contiguous_sequence.hpp"
#include "runtime/measure/bubble.hpp"
#include "runtime/plan/attention_memory.hpp"
#include "runtime/plan/claims.hpp"
#include "runtime/plan/growth.hpp"
#include "runtime/plan/kv.hpp"
#include "runtime/plan/links.hpp"

namespace testbed::plan {
namespace {

using In = const ClaimInputs&;
constexpr double kib = 1024.0;
constexpr double mib = 1024.0 * 1024.0;
constexpr int64_t one_gib = int64_t{1} << 30;
constexpr int n_devices = 8;

int64_t layer_bytes(In in) { return all_reduce_bytes_per_layer(in.llama3_70b, 1, DType::BF16); }
int64_t token_bytes(In in) { return layer_bytes(in) * in.llama3_70b.n_layers; }
double all_reduce_ms(double bytes_per_s) {
  return 1e3 * ring_all_reduce_seconds(one_gib, n_devices, bytes_per_s);
}

void say_attention(const Say& say) {
  const std::string_view row = "Attention";
  constexpr int64_t n = 64 << 10;
  constexpr int64_t d = 128;
  constexpr int64_t on_chip = 64 << 10;
  say({row,
       "materialised: accesses when the sequence doubles",
       "4",
       "x",
       [](In) {
         return materialised_attention_accesses(2 * n, d) / materialised_attention_accesses(n, d);
       },
       "n d + n²: quadratic once n is far above d",
       0.1});
  say({row,
       "flash: accesses when the sequence doubles",
       "2",
       "x",
       [](In) {
         return flash_attention_accesses(2 * n, d, on_chip) /
                flash_attention_accesses(n, d, on_chip);
       },
       "n² d² / m: still quadratic; what is linear is the memory it takes"});
  say({row, "flash: accesses when on-chip memory doubles", "0.5", "x", [](In) {
         return flash_attention_accesses(n, d, 2 * on_chip) /
                flash_attention_accesses(n, d, on_chip);
       }});
  say({row,
       "decode reads the KV cache",
       "1",
       "x",
       [](In in) {
         const ModelConfig& m = in.llama3_70b;
         const ContiguousSequence decode(1, n);
         const AttentionSequence last = decode.view();
         const OpCost cost = attention_cost(
             {&last, 1}, 0, m.n_heads, {m.n_kv_heads, m.head_dim, m.head_dim, DType::BF16});
         return static_cast<double>(cost.kv_bytes * m.n_layers) /
                static_cast<double>(n * kv_bytes_per_token(m, DType::BF16));
       },
       "flash or not"});
}

void say_all_reduce(const Say& say) {
  std::string_view row = "All-reduce of tensor parallelism";
  say({row,
       "70 B, batch 1, bf16: payload of one",
       "16",
       "KiB",
       [](In in) { return static_cast<double>(layer_bytes(in)) / 2.0 / kib; },
       "two per layer"});
  say({row,
       "80 layers, a token",
       "2.5",
       "MiB",
       [](In in) { return static_cast<double>(token_bytes(in)) / mib; },
       "the embedding's is one more of 16 KiB"});
  say({row, "sent by each of 8 devices in a ring, a token", "4.6", "MB", [](In in) {
         return static_cast<double>(ring_all_reduce_wire_bytes(token_bytes(in), n_devices)) * 1e-6;
       }});

  row = "All-reduce of 1 GiB over 8 H100";
  say({row, "ring at NVLink 4's line rate", "4.2", "ms", [](In in) {
         return all_reduce_ms(in.nvlink4.bytes_per_s);
       }});
  say({row, "ring at PCIe 5 x16's line rate", "29.4", "ms", [](In in) {
         return all_reduce_ms(in.pcie5_x16.bytes_per_s);
       }});
  say({row,
       "ring at NCCL's measured 368 GB/s",
       "5.1",
       "ms",
       [](In) { return all_reduce_ms(368e9); },
       "fitted in benchmarks/measured"});
}

void say_bubble(const Say& say) {
  const std::string_view row = "Pipeline bubble";
  say({row,
       "4 stages, 8 microbatches, flushed",
       "27",
       "%",
       [](In) { return 100.0 * *flushed_bubble(4, 8, 1); },
       "(P-1) / (M+P-1)"});
  say({row,
       "4 stages, 8 microbatches, decode that is not drained",
       "27",
       "%",
       [](In) { return 100.0 * decode_bubble(4, 8); },
       "max(0, 1 - M/P)"});
  say({row,
       "4 stages, 1 microbatch, decode that is not drained",
       "75",
       "%",
       [](In) { return 100.0 * decode_bubble(4, 1); },
       "max(0, 1 - M/P)"});
}

void say_links(const Say& say) {
  const std::string_view row = "Hierarchy of links, H100, one direction";
  say({row, "HBM against NVLink", "7.4", "x", [](In in) {
         return in.h100.memory_bytes_per_s / in.nvlink4.bytes_per_s;
       }});
  say({row,
       "HBM against NVLink",
       "3.7",
       "x",
       [](In in) { return in.h100.memory_bytes_per_s / in.nvlink4.bytes_per_s; },
       "3.7 compares with NVLink's two directions together"});
  say({row, "HBM against NVLink's two directions together", "3.7", "x", [](In in) {
         return in.h100.memory_bytes_per_s / (2.0 * in.nvlink4.bytes_per_s);
       }});
  say({row, "NVLink against PCIe 5 x16", "7.0", "x", [](In in) {
         return in.nvlink4.bytes_per_s / in.pcie5_x16.bytes_per_s;
       }});
}

void say_growth(const Say& say) {
  const std::string_view row = "Growth per two years";
  say({row, "ridge, at compute 3.0 x and DRAM 1.6 x", "1.875", "x", [](In) {
         return ridge_growth({}, 2.0);
       }});
  say({row, "ridge, in twenty years", "537", "x", [](In) { return ridge_growth({}, 20.0); }});
  say({row, "interconnect behind DRAM, in twenty years", "3.8", "x", [](In) {
         return interconnect_lag({}, 20.0);
       }});
}

}  // namespace

std::vector<Claim> parallel_claims() {
  std::vector<Claim> claims;
  const Say say = [&claims](Claim claim) { claims.push_back(std::move(claim)); };
  say_attention(say);
  say_all_reduce(say);
  say_bubble(say);
  say_links(say);
  say_growth(say);
  return claims;
}

}  // namespace testbed::plan
