// ProbeRecord: a machine's own curves, measured or computed: what `testbed probe` prints, writes as
// JSON (INTERFACE.md) and fits a device + cluster preset to. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/op_cost.hpp"
#include "kernels/probes/device_curves.hpp"
#include "parallel/comm/communicator.hpp"

namespace testbed {

struct CollectivePoint {
  CommOp op = CommOp::all_reduce;  // `send` is one message from one rank to another
  int n = 1;                       // ranks
  int64_t bytes = 0;               // as nccl-tests counts them
  CommAlgorithm algorithm = CommAlgorithm::none;
  double us = 0.0;
  bool best = false;       // the algorithm that a communicator takes for this payload
  int64_t most_bytes = 0;  // of a payload that the algorithm takes on this machine; 0: any
};

// y[m, n] = x[m, k] W[n, k]^T, W read from memory.
struct GemmPoint {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  std::string dtype;  // of the weights: "bf16"
  double us = 0.0;
};

// decode: one query per sequence over `context` cached tokens; prefill: `context` queries per
// sequence over themselves.
enum class AttentionPhase : uint8_t { decode, prefill };
struct AttentionPoint {
  AttentionPhase phase = AttentionPhase::decode;
  int64_t batch = 1;
  int64_t context = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  double us = 0.0;
};

// A message between two ranks: one way by itself, and one each way at once.
struct PairPoint {
  int first = 0;
  int second = 1;
  int64_t bytes = 0;  // of one message
  double one_way_us = 0.0;
  double both_ways_us = 0.0;
};

// Everything that is neither a product nor attention, on `rows` rows of `width` elements.
struct ElementwisePoint {
  OpKind op = OpKind::norm;
  int64_t rows = 0;
  int64_t width = 0;
  double us = 0.0;
};

struct ProbeRecord {
  std::string device;  // kind: "cpu", "cuda", "sim"
  bool simulated = false;
  std::string description;  // of the device, or of the cluster that was computed
  int n_ranks = 1;
  std::vector<std::string> labels;  // what to know before comparing with other machines
  std::vector<CollectivePoint> collectives;
  std::vector<GemmPoint> gemm;
  std::vector<AttentionPoint> attention;
  std::vector<ElementwisePoint> elementwise;
  double memory_read_bytes_per_s = 0.0;      // one rank, the others idle
  double memory_read_all_bytes_per_s = 0.0;  // all ranks of the host at once, their sum
  double peak_flops = 0.0;                   // of one rank, in dtype
  double kernel_overhead_us = 0.0;           // of the smallest op; in a model, of a product
  std::vector<PairPoint> pairs;              // of more than two ranks, where links may differ
  std::optional<DeviceCurves> curves;        // of a GPU's own kernels
};

}  // namespace testbed
