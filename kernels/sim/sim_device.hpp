// SimDevice: a device of a simulated cluster. It computes nothing: each op adds the time that
// pass_op_seconds gives its cost to the rank's virtual clock.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/base/device_spec.hpp"
#include "kernels/device.hpp"

namespace testbed {

// The virtual time of one rank, in seconds from the start of the run. It may be ahead of the
// simulation's: a rank computes without stopping, and catches up when it meets others.
class SimClock final : public Clock {
 public:
  int64_t now_ns() const override { return std::llround(now_s_ * 1e9); }
  double now_s() const { return now_s_; }
  void add(double seconds) { now_s_ += seconds; }
  void move_to(double time_s) { now_s_ = time_s; }  // a rank that waits for nobody may go back
  void wait_until(double time_s) { now_s_ = std::max(now_s_, time_s); }

 private:
  double now_s_ = 0.0;
};

// The peak that counts for operands of a type on a device: devices without bf16 do it in f16, as
// fast. Throws ConfigError if the device cannot multiply it at all.
MathType math_of(const DeviceSpec& device, DType operands);

// Tensors of simulated devices lie in an address range that cannot be touched.
bool is_simulated_memory(const void* address);

class SimDevice final : public Device {
 public:
  // The seed decides which tokens are "sampled".
  SimDevice(const DeviceSpec& spec, SimClock& clock, DType compute_dtype, uint64_t seed);

  std::string_view kind() const override { return "sim"; }
  std::string description() const override { return spec_.description + " (simulated)"; }
  DType compute_dtype() const override { return compute_dtype_; }
  bool holds_data() const override { return false; }
  Tensor allocate(DType dtype, Shape shape) override;
  WeightMatrix allocate_weight(int64_t n_rows, int64_t n_cols, const WeightFormat& format) override;
  void store_rows(const WeightMatrix& weight, int64_t first_row, TensorView rows) override;
  void store_rows(const WeightMatrix& weight,
                  int64_t first_row,
                  const QuantisedRows& rows) override;
  void upload(TensorView /*host*/, TensorView /*device*/) override {}
  void download(TensorView /*device*/, TensorView /*host*/) override {}
  void fill_synthetic(TensorView /*x*/) override {}

 private:
  bool charges() const override { return true; }
  void do_charge(OpKind kind, const OpCost& cost, const OpShape& shape, DType operands) override;
  // Random values: every row's largest logit is somewhere else, on some rank.
  void do_row_max(TensorView logits, std::span<RowMax> out) override;
  // Draws by the rows' keys alone: no rank's state, no groups. Writes the host tensors.
  void do_route(TensorView logits,
                const RoutingParams& params,
                TensorView ids,
                TensorView weights) override;

  void do_embed(std::span<const int32_t> /*ids*/,
                const WeightMatrix& /*table*/,
                int64_t /*first_id*/,
                TensorView /*out*/) override {}
  void do_rms_norm(TensorView /*x*/,
                   TensorView /*weight*/,
                   float /*eps*/,
                   TensorView /*out*/) override {}
  void do_add_rms_norm(TensorView /*residual*/,
                       TensorView /*x*/,
                       TensorView /*weight*/,
                       float /*eps*/,
                       TensorView /*out*/) override {}
  void do_add(TensorView /*residual*/, TensorView /*x*/) override {}
  void do_head_norm(TensorView /*x*/, TensorView /*weight*/, float /*eps*/) override {}
  void do_linear(TensorView /*x*/,
                 const WeightMatrix& /*weight*/,
                 TensorView /*bias*/,
                 TensorView /*y*/) override {}
  void do_rope(TensorView /*x*/,
               std::span<const int64_t> /*positions*/,
               const RopeFrequencies& /*frequencies*/) override {}
  void do_write_kv(TensorView /*k*/,
                   TensorView /*v*/,
                   const KvView& /*kv*/,
                   std::span<const int64_t> /*slots*/) override {}
  void do_gather_blocks(const KvView& /*from*/,
                        std::span<const int32_t> /*blocks*/,
                        const KvView& /*to*/) override {}
  void do_attention(TensorView /*q*/,
                    const KvView& /*kv*/,
                    const AttentionParams& /*params*/,
                    TensorView /*out*/,
                    TensorView /*lse*/) override {}
  void do_merge_attention(TensorView /*total*/,
                          TensorView /*total_lse*/,
                          TensorView /*part*/,
                          TensorView /*part_lse*/) override {}
  void do_finish_attention(TensorView /*total*/,
                           TensorView /*total_lse*/,
                           TensorView /*sinks*/,
                           TensorView /*out*/) override {}
  void do_gated_activation(Activation /*activation*/,
                           TensorView /*gate_up*/,
                           TensorView /*out*/) override {}
  void do_gated_activation(Activation /*activation*/,
                           TensorView /*gate*/,
                           TensorView /*up*/,
                           TensorView /*out*/) override {}
  void do_scale(TensorView /*x*/, float /*factor*/) override {}
  void do_softcap(TensorView /*x*/, float /*cap*/) override {}
  void do_gather_rows(TensorView /*x*/,
                      std::span<const int64_t> /*rows*/,
                      TensorView /*out*/) override {}
  void do_copy_columns(TensorView /*x*/,
                       int64_t /*x_column*/,
                       int64_t /*n*/,
                       TensorView /*out*/,
                       int64_t /*out_column*/) override {}
  void do_head_linear(TensorView /*x*/,
                      std::span<const WeightMatrix> /*weights*/,
                      TensorView /*y*/) override {}
  void do_expert_linear(TensorView /*x*/,
                        const ExpertRows& /*experts*/,
                        std::span<const WeightMatrix> /*weights*/,
                        TensorView /*biases*/,
                        TensorView /*y*/) override {}
  void do_combine_rows(TensorView /*x*/,
                       const WeightedRows& /*sums*/,
                       TensorView /*out*/) override {}
  bool do_all_finite(TensorView /*x*/) override { return true; }

  const DeviceSpec& spec_;
  SimClock& sim_clock_;
  DType compute_dtype_;
  uint64_t draws_;
};

}  // namespace testbed
