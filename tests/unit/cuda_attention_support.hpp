// Attention on the (emulated) CUDA device, with arguments and results on the host.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention.hpp"
#include "tests/unit/attention_batch.hpp"
#include "tests/unit/cuda_copies.hpp"

namespace testbed::cuda {

inline Tensor on_device(TensorView host) {
  if (host.empty()) return {};
  Tensor copy = device_tensor(host.dtype(), host.shape());
  copy_to_device(host.data(), copy);
  return copy;
}

// Of each weight: tensor cores multiply values with weights that were rounded to bf16. 0 where CUDA
// cores do all.
inline double weight_rounding(const cpu::AttentionDims& dims) {
  const bool on_tensor_cores =
      dims.dtype == DType::BF16 && dims.head_dim % 8 == 0 && dims.v_dim % 8 == 0;
  return on_tensor_cores ? tolerance::bf16_rounding : 0.0;
}

class DeviceAttention {
 public:
  Queue& queue() { return queue_; }

  void run(const cpu::AttentionArgs& args) {
    const Inputs inputs(args);
    out_ = on_device(args.out);
    attend(args, inputs);
    fetch(out_, args.out);
    if (!args.lse.empty()) fetch(lse_, args.lse);
  }
  void merge(TensorView total, TensorView total_lse, TensorView part, TensorView part_lse) {
    const Tensor on[] = {
        on_device(total), on_device(total_lse), on_device(part), on_device(part_lse)};
    merge_attention(queue_, on[0], on[1], on[2], on[3]);
    fetch(on[0], total);
    fetch(on[1], total_lse);
  }
  void finish(TensorView total, TensorView total_lse, TensorView sinks, TensorView out) {
    const Tensor on[] = {on_device(total), on_device(total_lse), on_device(sinks), on_device(out)};
    finish_attention(queue_, on[0], on[1], on[2], on[3]);
    fetch(on[3], out);
  }

  struct Inputs {
    explicit Inputs(const cpu::AttentionArgs& args)
        : q(on_device(args.q)), sinks(on_device(args.sinks)), kv(args.kv) {
      const Shape k_shape{kv.n_blocks, kv.n_kv_heads, kv.block_size, kv.head_dim};
      const Shape v_shape{kv.n_blocks, kv.n_kv_heads, kv.block_size, kv.v_dim};
      k = on_device({kv.k, kv.dtype, k_shape});
      if (kv.v != nullptr) v = on_device({kv.v, kv.dtype, v_shape});
      kv.k = k.data();
      kv.v = v.data();
    }
    Tensor q, sinks, k, v;
    KvView kv;
  };
  // Enqueues; the results are in out() and lse().
  void attend(const cpu::AttentionArgs& args, const Inputs& inputs) {
    if (out_.shape() != args.out.shape() || out_.dtype() != args.out.dtype()) {
      out_ = on_device(args.out);
    }
    if (lse_.shape() != args.lse.shape()) lse_ = on_device(args.lse);
    attention_.attend(inputs.q,
                      inputs.kv,
                      {.sequences = args.sequences,
                       .window = args.window,
                       .scale = args.scale,
                       .softcap = args.softcap,
                       .head_to_kv = args.head_to_kv,
                       .sinks = inputs.sinks},
                      out_,
                      lse_);
  }
  void fetch(TensorView device, TensorView host) {
    queue_.synchronize();
    check(cudaMemcpy(host.data(),
                     device.data(),
                     static_cast<size_t>(host.n_bytes()),
                     cudaMemcpyDeviceToHost),
          "cudaMemcpy");
  }
  TensorView out() const { return out_; }

 private:
  Queue queue_;
  Attention attention_{queue_};
  Tensor out_, lse_;
};

}  // namespace testbed::cuda
