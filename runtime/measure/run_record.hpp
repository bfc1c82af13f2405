// RunRecord: what a run was and what it cost, by phase, device, collective, layer and stage. Plain
// data; every report reads it and nothing else. The fields mirror the JSON record
// (docs/record.md); std::optional is null there. Bytes are exact integers; *_ms and *_us are what
// they say; per step means the mean over the steps of a phase.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/measure/device_counters.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/measure/timeline.hpp"

namespace testbed {

struct ParallelRecord {
  int tp = 1;
  int pp = 1;
  int cp = 1;
  int dp = 1;
  int ep = 1;
  int microbatches = 1;  // as asked for; a phase's pipeline says what was effective
  int virtual_stages = 1;
  std::string cp_placement = "zigzag";
  std::string expert_exchange = "none";  // "none", "all-to-all", "all-reduce"
  std::string tp_comm = "all-reduce";
};

struct RequestRecord {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;  // really generated, not asked for
  std::vector<int32_t> ids;
  std::optional<std::string> text;
  std::optional<double> ttft_ms;  // median over the repeats of the timed pass
  std::optional<double> tpot_ms;  // null for one token
};

struct TimingRecord {
  Repeated ttft_ms;  // of a repeat: the median over its requests
  Repeated tpot_ms;  // of a repeat: the median over its requests of two tokens or more; else empty
  // Over all steps of all repeats: decode steps, or prefill steps if there is no other.
  std::string step_phase;
  std::optional<Summary> step_ms;
  Repeated prefill_tokens_per_s;  // prompt tokens / time in prefill steps
  Repeated decode_tokens_per_s;   // tokens of decode steps / time in decode steps
};

// Fractions of device time; they sum to 1.
struct Shares {
  double weights = 0.0;
  double kv = 0.0;
  double compute = 0.0;
  double interconnect = 0.0;
  double wait = 0.0;
  double bubble = 0.0;
  double overhead = 0.0;

  double memory() const { return weights + kv; }
};

struct RooflineRecord {
  double intensity_flop_per_byte = 0.0;  // executed FLOPs / (weight + KV bytes)
  double ridge_flop_per_byte = 0.0;      // peak FLOP/s / peak bandwidth, all devices
  double attainable_flops = 0.0;         // FLOP/s
  double achieved_flops = 0.0;           // FLOP/s
  std::string regime;                    // "memory" | "compute"
};

// Per step of the phase, on this device. The seven *_ms add up to step_ms (breakdown pass).
struct DevicePhaseRecord {
  int rank = 0;
  int tp = 0;
  int pp = 0;
  int cp = 0;
  int dp = 0;
  std::string host;
  int64_t steps = 0;  // of one repeat
  int64_t weight_bytes = 0;
  int64_t kv_bytes = 0;
  int64_t kv_write_bytes = 0;
  int64_t flops = 0;
  int64_t read_bytes_total = 0;  // weights + KV of one repeat
  double step_ms = 0.0;
  double weights_ms = 0.0;
  double kv_ms = 0.0;
  double compute_ms = 0.0;
  double wire_ms = 0.0;
  double wait_ms = 0.0;
  double bubble_ms = 0.0;
  double overhead_ms = 0.0;
};

struct LateRank {
  int rank = 0;
  int64_t count = 0;       // calls for which it arrived last
  double median_us = 0.0;  // after the second latest
  double total_us = 0.0;
};

// One kind of collective of a phase: calls with equal (op, axis, site, algorithm).
struct CollectiveRecord {
  std::string op;  // comm_op_name, and send_recv for messages
  std::string axis;
  std::string site;
  std::string algorithm;
  std::string transport;
  int n = 1;            // ranks of the group; 2 for send_recv
  int64_t groups = 0;   // how many groups did it
  int64_t calls = 0;    // of all groups, in all breakdown repeats
  double per_step = 0;  // calls of one group per step (of the busiest, if stages differ)
  bool uniform = true;  // every call, and every rank of it, had the same payload
  // Of one call, its busiest rank; the rounded mean if the calls are not uniform.
  int64_t payload_bytes = 0;
  int64_t wire_bytes_per_device = 0;
  int64_t payload_bytes_per_step = 0;  // of the busiest group
  // Of a call: the longest wait of its ranks; the median over calls. Null where clocks of several
  // hosts cannot tell.
  std::optional<double> wait_us;
  struct Wire {
    double median = 0.0;
    double p90 = 0.0;
    double max = 0.0;
  } wire_us;  // of a call: the largest of its ranks
  // Of messages: no receiver was waiting when one was sent, so wire_us is what it took at most.
  bool wire_is_bound = false;
  double exposed_us = 0.0;  // wire time a step, mean over the devices of its groups
  // Payload / median wire; at least that if wire_is_bound.
  std::optional<double> algbw_gb_s;
  std::optional<double> busbw_gb_s;  // null for n = 1 and where no factor is defined
  int64_t unresolved =
      0;  // (call, rank) pairs whose wait is below the clocks' error: counted as wire
  std::vector<LateRank> latest;  // largest total lateness first
};

// Per step. layer = -1: embedding, final norm, head, sampling (`outside_layers` in the JSON).
struct LayerRecord {
  int layer = 0;
  int64_t weight_bytes = 0;  // all devices
  int64_t kv_bytes = 0;      // all devices
  // Over tp, of one tp group (the busiest one of a cp group), all microbatches.
  int64_t all_reduce_payload_bytes = 0;
  int64_t all_reduce_wire_bytes = 0;  // sent by one device of it
  int64_t reduce_scatter_payload_bytes = 0;
  int64_t all_gather_payload_bytes = 0;
  // Mean over the devices that hold the layer; wire and wait of tp, cp and ep.
  double memory_ms = 0.0;
  double wire_ms = 0.0;
  double wait_ms = 0.0;
};

struct StageRecord {
  int stage = 0;
  std::vector<int> layers;
  double busy_ms = 0.0;  // per step, mean over the stage's devices: step - transfer - idle
  double transfer_ms = 0.0;
  double idle_ms = 0.0;
};
struct PipelineRecord {
  bool flushed = false;
  double bubble_measured = 0.0;
  std::optional<double> bubble_formula;      // for equal stages
  std::optional<double> bubble_from_stages;  // for these stages' busy times; null if interleaved
                                             // or if steps had unequal microbatches
  int effective_microbatches = 1;
  std::vector<StageRecord> stages;
};

// A step of ring attention: a rank attends to the blocks at hand while the next ones come. Per step
// of the phase, mean over the devices, summed over layers and microbatches. transfer = hidden +
// exposed: from when both ends of a message were there until it had arrived; exposed is what the
// device was blocked of it, receiving or until a send buffer was free.
struct RingStepRecord {
  int step = 0;
  double compute_ms = 0.0;
  double transfer_ms = 0.0;
  double hidden_ms = 0.0;
  double exposed_ms = 0.0;
  double wait_ms = 0.0;    // blocked before the other side was there: not transfer
  int64_t sent_bytes = 0;  // by the busiest device
  // When some messages arrived is not known: transfer and hidden are at most that.
  bool transfer_is_bound = false;
};

// Of one repeat. A pass is one rank's routing of tokens that no other rank routes too; those of
// replicas are apart.
struct ExpertLayerRecord {
  int layer = 0;
  int64_t passes = 0;
  std::vector<int64_t> tokens_per_expert;  // (token, expert) pairs, all replicas
  double touched = 0.0;                    // distinct experts of a pass, mean over the passes
  double touched_uniform = 0.0;            // E (1 - (1 - k/E)^B) for the same passes of B tokens
  int64_t touched_bytes = 0;               // expert weights read, all devices: per pass
  double balance = 0.0;                    // mean / max of tokens_per_expert
};
struct ExpertsRecord {
  int64_t n_experts = 0;
  int64_t top_k = 0;
  std::string exchange;  // ParallelRecord::expert_exchange
  std::vector<ExpertLayerRecord> per_layer;
  std::vector<std::vector<int64_t>> all_to_all_bytes;  // [source][target], of one repeat; empty if
                                                       // nothing was exchanged
};

// What the ranks of one memory domain read together, against its read loop.
struct MemoryDomainRecord {
  std::string name;
  std::vector<int> ranks;
  int64_t bytes_per_step = 0;  // weights + KV
  int64_t working_set_bytes = 0;
  bool cache_resident = false;
  double peak_bytes_per_s = 0.0;  // 0: not measured
  std::optional<double> mbu;      // null if cache-resident or without a peak
};

// What the simulator says of the same run on a named cluster.
struct PredictedRecord {
  std::string cluster;
  double step_ms = 0.0;
  Shares shares;
};

struct PhaseRecord {
  Phase phase = Phase::decode;
  int64_t steps = 0;        // of one repeat
  Repeated step_ms;         // timed pass; of a repeat: the mean over its steps
  Summary step_ms_summary;  // over single steps of all repeats
  double breakdown_step_ms = 0.0;
  std::optional<double> instrument_overhead;
  std::string bound_by;
  Shares shares;
  Shares shares_min;  // over the breakdown repeats
  Shares shares_max;
  std::optional<double> mfu;  // null if ranks took turns on cores and it came out above 1
  std::optional<double> mbu;
  bool cache_resident = false;
  // Per step, all devices: the sum of per_device.
  int64_t flops = 0;
  int64_t model_flops = 0;
  int64_t weight_bytes = 0;
  int64_t kv_bytes = 0;
  int64_t kv_write_bytes = 0;
  // Timed pass, of a repeat: all steps of the phase, of the replica that takes longest. What MFU,
  // MBU and the roofline divide the totals by: replicas may have unequal numbers of steps.
  Repeated duration_s;
  int64_t flops_total = 0;  // one repeat, all devices: exact
  int64_t model_flops_total = 0;
  int64_t weight_bytes_total = 0;
  int64_t kv_bytes_total = 0;
  std::optional<RooflineRecord> roofline;    // null without peaks
  std::optional<PredictedRecord> predicted;  // --cluster, beside a measurement
  std::vector<MemoryDomainRecord> memory_domains;
  std::vector<DevicePhaseRecord> per_device;
  std::vector<CollectiveRecord> collectives;
  std::vector<LayerRecord> layers;
  std::optional<LayerRecord> outside_layers;
  std::optional<PipelineRecord> pipeline;  // null for pp = 1
  std::vector<RingStepRecord> ring;        // [cp]; empty (null): no ring attention
  std::optional<ExpertsRecord> experts;    // null without experts
};

struct MemoryRecord {
  int rank = 0;
  int64_t weights_bytes = 0;
  int64_t kv_bytes_per_token = 0;
  int64_t kv_pool_bytes = 0;
  int64_t kv_used_bytes = 0;
  int64_t kv_waste_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t capacity_bytes = 0;
};

struct ChecksRecord {
  struct AgainstOneRank {
    std::string mode = "off";  // off, layers, full
    int64_t compared = 0;      // values compared
    std::optional<double> max_abs_diff;
    std::optional<double> tolerance;  // what rounding explains
    // What was checked: the run's split, on fewer layers as many stages as there are layers for.
    int layers = 0;
    int tp = 1;
    int pp = 1;
    int virtual_stages = 1;
    int cp = 1;
    int ep = 1;
    std::string compute_dtype = {};  // of the check; the run's, but f32 for models with experts
    std::optional<std::string> first_difference;
  } against_one_rank;
  std::optional<bool> replicas_bitwise_equal;  // null: not checked
};

// Peaks measured on one domain or device, with their samples.
struct PeakRecord {
  std::string memory_domain;
  std::vector<int> ranks;
  Repeated read_bytes_per_s;  // of a sample: the sum over the domain's ranks reading at once
  double peak_flops = 0.0;    // dense FLOP/s, sum over the domain's ranks
  int64_t llc_bytes = 0;
};

struct ClockRecord {
  int rank = 0;
  int64_t offset_ns = 0;
  int64_t error_ns = 0;
};

struct FingerprintRecord {
  std::vector<std::string> hosts;    // distinct, in rank order
  std::vector<std::string> devices;  // one per rank
  std::optional<std::string> driver;
  std::map<std::string, std::string> libraries;
  std::vector<std::string> binding;  // one per rank
  std::map<std::string, std::string> environment;
  std::string config_hash;
  std::string version;
};

// The model's routed experts; 0: it has none.
struct ExpertsDescription {
  int64_t n_experts = 0;
  int64_t top_k = 0;
};

// The pieces that are not measured but said, copied through by analyse().
struct RunDescription {
  std::string device = {};  // "cpu"
  bool simulated = false;
  std::vector<std::string> labels = {};
  std::string model = {};
  int layers = 0;
  std::string weight_dtype = {};
  std::string compute_dtype = {};
  ParallelRecord parallel = {};
  ExpertsDescription experts = {};
  std::vector<RequestRecord> requests = {};  // prompt_tokens, generated_tokens, ids, text
  std::vector<MemoryRecord> memory = {};
  ChecksRecord checks = {};
  FingerprintRecord fingerprint = {};
  std::map<std::string, std::string> options = {};  // as resolved: "warmup" -> "2"
};

// More ranks than cores: they take turns, so their times cannot be added up.
inline bool is_oversubscribed(const RunDescription& run) {
  return std::any_of(run.labels.begin(), run.labels.end(), [](const std::string& label) {
    return label.starts_with("oversubscribed");
  });
}

struct RunRecord {
  static constexpr const char* schema = "testbed-record-1";
  RunDescription run;  // labels and requests completed by analyse()
  int world_size = 1;
  TimingRecord timing;
  std::vector<PhaseRecord> phases;  // those that occurred, in the order of Phase
  std::optional<double> instrument_overhead;
  std::vector<PeakRecord> peaks;
  std::vector<ClockRecord> clocks;
  std::vector<DeviceCountersRecord> device_counters;  // of the ranks whose device has some
  std::optional<EnergyRecord> energy;

  const PhaseRecord* phase(Phase which) const;  // nullptr if it did not occur
};

}  // namespace testbed
