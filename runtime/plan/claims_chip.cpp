// Claims: warps and residency.
#include "runtime/plan/chip.hpp"
#include "runtime/plan/claims.hpp"

namespace testbed::plan {
namespace {

using In = const ClaimInputs&;

}  // namespace

std::vector<Claim> chip_claims() {
  std::vector<Claim> claims;
  const auto say = [&claims](Claim claim) { claims.push_back(std::move(claim)); };

  std::string_view row = "Coalescing and divergence";
  say({row,
       "4-byte values at a large stride: bytes moved against side by side",
       "8",
       "x",
       [](In) {
         return static_cast<double>(warp_read_bytes(4, 4096)) /
                static_cast<double>(warp_read_bytes(4, 4));
       },
       "memory is read in sectors of 32 bytes"});
  say({row, "a two-way branch: lanes that work", "50", "%", [](In) {
         return 100.0 * divergence_efficiency(2);
       }});

  row = "Residency, H100 SXM";
  say({row,
       "threads",
       "270336",
       "",
       [](In in) { return static_cast<double>(resident_threads(in.h100.chip)); },
       "132 x 2,048"});
  say({row, "warps", "8448", "", [](In in) {
         return static_cast<double>(resident_warps(in.h100.chip));
       }});
  say({row, "registers", "33", "MiB", [](In in) {
         return static_cast<double>(register_bytes(in.h100.chip)) / (1024.0 * 1024.0);
       }});
  say({row, "registers a resident thread", "128", "B", [](In in) {
         return static_cast<double>(register_bytes(in.h100.chip)) /
                static_cast<double>(resident_threads(in.h100.chip));
       }});
  say({row, "a block of 100 threads", "4", "warps", [](In) {
         return static_cast<double>(warps_of_block(100));
       }});
  say({row, "a block of 100 threads", "28", "idle lanes", [](In) {
         return static_cast<double>(idle_lanes_of_block(100));
       }});
  return claims;
}

}  // namespace testbed::plan
