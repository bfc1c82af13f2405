"""Strict reader of a record (--json): python3 check_record.py record.json [...]. Every field of the interface is there
with its type, shares sum to 1, the parts of a device sum to its step, nothing is NaN. Exit code 1 says what is wrong."""
import json
import math
import sys


class Wrong(Exception):
    pass


def refuse_token(token):
    raise Wrong(f"{token} is not JSON")


def unique_keys(pairs):
    result = dict(pairs)
    if len(result) != len(pairs):
        raise Wrong(f"duplicate key among {[key for key, _ in pairs]}")
    return result


def strict_loads(data):
    return json.loads(data.decode("utf-8"), parse_constant=refuse_token, object_pairs_hook=unique_keys)


# Types as in the interface: INT is an integer token; NUM any finite number; OPT(x) may be null; a list [x] of x; a dict of
# fields (more are allowed); MAP any object of strings.
INT, NUM, STR, BOOL, MAP = "int", "num", "str", "bool", "map"


def OPT(kind):
    return ("opt", kind)


PARTS = ("weights", "kv", "compute", "interconnect", "wait", "bubble", "overhead")
SHARES = {name: NUM for name in PARTS}
DEVICE_PARTS = ("weights_ms", "kv_ms", "compute_ms", "wire_ms", "wait_ms", "bubble_ms", "overhead_ms")
DEVICE = {**{name: INT for name in ("rank", "tp", "pp", "cp", "dp", "weight_bytes", "kv_bytes", "flops", "steps")},
          "host": STR, "step_ms": NUM, **{name: NUM for name in DEVICE_PARTS}}
COLLECTIVE = {
    "op": STR, "axis": STR, "site": STR, "per_step": NUM, "payload_bytes": INT, "wire_bytes_per_device": INT,
    "algorithm": STR, "transport": STR, "wait_us": OPT(NUM), "wire_us": {"median": NUM, "p90": NUM, "max": NUM},
    "exposed_us": NUM, "algbw_gb_s": OPT(NUM), "busbw_gb_s": OPT(NUM),
    "latest": [{"rank": INT, "count": INT, "median_us": NUM}]}
LAYER = {**{name: INT for name in ("layer", "weight_bytes", "kv_bytes", "all_reduce_payload_bytes",
                                   "all_reduce_wire_bytes", "reduce_scatter_payload_bytes", "all_gather_payload_bytes")},
         "memory_ms": NUM, "wire_ms": NUM}
PIPELINE = {"flushed": BOOL, "bubble_measured": NUM, "bubble_formula": OPT(NUM), "bubble_from_stages": OPT(NUM),
            "stages": [{"stage": INT, "layers": [INT], "busy_ms": NUM, "transfer_ms": NUM, "idle_ms": NUM}]}
RING_STEP = {"step": INT, "sent_bytes": INT, "transfer_is_bound": BOOL,
             **{name: NUM for name in ("compute_ms", "transfer_ms", "hidden_ms", "exposed_ms", "wait_ms")}}
EXPERTS = {"n_experts": INT, "top_k": INT, "exchange": STR, "all_to_all_bytes": [[INT]],
           "per_layer": [{"layer": INT, "passes": INT, "tokens_per_expert": [INT], "touched": NUM, "touched_uniform": NUM,
                          "touched_bytes": INT, "balance": NUM}]}
PHASE = {
    "steps": INT, "step_ms": NUM, "bound_by": STR, "shares": SHARES, "mfu": OPT(NUM), "mbu": OPT(NUM), "flops": INT,
    "weight_bytes": INT, "kv_bytes": INT,
    "roofline": {"intensity_flop_per_byte": NUM, "ridge_flop_per_byte": NUM, "attainable_flops": NUM,
                 "achieved_flops": NUM, "regime": STR},
    "predicted": OPT({"cluster": STR, "step_ms": NUM, "shares": SHARES}),
    "per_device": [DEVICE], "collectives": [COLLECTIVE], "layers": [LAYER], "pipeline": OPT(PIPELINE),
    "ring": OPT([RING_STEP]), "experts": OPT(EXPERTS)}
DEVICE_COUNTERS = {
    "rank": INT, "device": STR, "seconds": NUM, "predicted_wire_bytes": INT, "transport": STR,
    **{name: OPT(NUM) for name in ("joules", "power_throttled_s", "thermal_throttled_s")},
    **{name: OPT(INT) for name in ("nvlink_tx_bytes", "nvlink_rx_bytes", "predicted_link_bytes_min",
                                   "predicted_link_bytes_max", "pcie_tx_bytes", "pcie_rx_bytes", "ib_tx_bytes", "ib_rx_bytes", "ecc_corrected", "ecc_uncorrected", "sm_clock_mhz_min", "sm_clock_mhz_max",
                                   "temperature_c_max", "dram_read_bytes", "dram_write_bytes")},
    "throttle_reasons": OPT([STR]), "xids": OPT([INT]), "why_no_dram": OPT(STR), "why_no_link_bytes": OPT(STR)}
RECORD = {
    "schema": STR, "device": STR, "simulated": BOOL, "labels": [STR], "model": STR, "layers": INT, "world_size": INT,
    "parallel": {**{name: INT for name in ("tp", "pp", "cp", "dp", "ep", "microbatches", "virtual_stages")},
                 **{name: STR for name in ("cp_placement", "expert_exchange", "tp_comm")}},
    "requests": [{"prompt_tokens": INT, "generated_tokens": INT, "ids": [INT], "text": OPT(STR), "ttft_ms": OPT(NUM),
                  "tpot_ms": OPT(NUM)}],
    "timing": {"ttft_ms": OPT(NUM), "tpot_ms": OPT(NUM), "prefill_tokens_per_s": OPT(NUM), "decode_tokens_per_s": OPT(NUM),
               "step_ms": {"median": NUM, "p90": NUM, "p99": NUM, "min": NUM, "max": NUM, "n": INT}},
    "memory": [{name: INT for name in ("rank", "weights_bytes", "kv_bytes_per_token", "kv_pool_bytes", "kv_used_bytes",
                                       "kv_waste_bytes", "workspace_bytes", "capacity_bytes")}],
    "checks": {"against_one_rank": {"mode": STR, "compared": INT, "max_abs_diff": OPT(NUM), "tolerance": OPT(NUM), "layers": INT, "tp": INT, "pp": INT, "virtual_stages": INT, "cp": INT, "ep": INT, "compute_dtype": STR,
                "first_difference": OPT(STR)},
               "replicas_bitwise_equal": OPT(BOOL)},
    "instrument_overhead": OPT(NUM),
    "device_counters": [DEVICE_COUNTERS], "energy": OPT({"joules": NUM, "joules_per_token": OPT(NUM)}),
    "fingerprint": {"hosts": [STR], "devices": [STR], "driver": OPT(STR), "libraries": MAP, "binding": [STR],
                    "environment": MAP, "config_hash": STR, "version": STR}}


def is_type(value, kind):
    if kind == INT:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == NUM:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind == MAP:
        return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    return {STR: lambda: isinstance(value, str), BOOL: lambda: isinstance(value, bool)}[kind]()


def check_type(value, kind, where):
    if isinstance(kind, tuple):
        if value is not None:
            check_type(value, kind[1], where)
    elif isinstance(kind, list):
        if not isinstance(value, list):
            raise Wrong(f"{where} is {value!r}, not a list")
        for i, item in enumerate(value):
            check_type(item, kind[0], f"{where}[{i}]")
    elif isinstance(kind, dict):
        if not isinstance(value, dict):
            raise Wrong(f"{where} is {value!r}, not an object")
        for name, inner in kind.items():
            if name not in value:
                raise Wrong(f"{where}.{name} is missing")
            check_type(value[name], inner, f"{where}.{name}")
    elif not is_type(value, kind):
        raise Wrong(f"{where} is {value!r}, not {kind}")


def check_none_negative(value, where):
    """Bytes, counts and times are not negative; layer -1 is its own entry, and offsets and overheads may be."""
    signed = ("instrument_overhead", "offset_ns", "ids", "outside_layers", "max_abs_diff")
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in signed:
                check_none_negative(inner, f"{where}.{name}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            check_none_negative(inner, f"{where}[{i}]")
    elif isinstance(value, (int, float)) and value < 0:
        raise Wrong(f"{where} is negative: {value}")


def check_sum(total, parts, tolerance, where):
    if abs(sum(parts) - total) > tolerance:
        raise Wrong(f"{where}: {parts} sum to {sum(parts)}, not {total}")


def check_phase(phase, record, where):
    check_type(phase, PHASE, where)
    check_sum(1.0, [phase["shares"][name] for name in PARTS], 1e-6, f"{where}.shares")
    memory = phase["shares"]["weights"] + phase["shares"]["kv"]
    candidates = {"memory": memory, **{name: phase["shares"][name] for name in PARTS[2:]}}
    if candidates.get(phase["bound_by"], -1.0) < max(candidates.values()) - 1e-9:
        raise Wrong(f"{where}.bound_by is {phase['bound_by']} of {candidates}")
    if (phase["instrument_overhead"] is None) != record["simulated"]:
        raise Wrong(f"{where}.instrument_overhead is {phase['instrument_overhead']}: stamps cost nothing only on virtual time")
    if phase["mfu"] is None and not any(label.startswith("oversubscribed") for label in record["labels"]):
        raise Wrong(f"{where}.mfu is null on ranks that each have their cores")
    if (phase["mfu"] or 0.0) > 1.0:
        raise Wrong(f"{where}.mfu is {phase['mfu']}")
    devices = phase["per_device"]
    if [device["rank"] for device in devices] != list(range(record["world_size"])):
        raise Wrong(f"{where}.per_device is not one entry per rank")
    for device in devices:
        parts = [device[name] for name in DEVICE_PARTS]
        check_sum(device["step_ms"], parts, 1e-6 * max(1.0, device["step_ms"]), f"{where}.per_device rank {device['rank']}")
    for name in ("weight_bytes", "kv_bytes", "flops"):
        check_sum(phase[name], [device[name] for device in devices], 0, f"{where}.{name}")
    if sorted(layer["layer"] for layer in phase["layers"]) != list(range(record["layers"])):
        raise Wrong(f"{where}.layers are {[layer['layer'] for layer in phase['layers']]} of {record['layers']}")
    if (phase["pipeline"] is None) != (record["parallel"]["pp"] == 1):
        raise Wrong(f"{where}.pipeline is {phase['pipeline']} for pp {record['parallel']['pp']}")
    if phase["pipeline"]:
        check_stages(phase["pipeline"], record, where)
    if phase["ring"] is not None:
        check_ring(phase, record, f"{where}.ring")
    if phase["experts"] is not None:
        check_experts(phase["experts"], record, f"{where}.experts")
    for i, collective in enumerate(phase["collectives"]):
        for late in collective["latest"]:
            if late["rank"] >= record["world_size"]:
                raise Wrong(f"{where}.collectives[{i}].latest names rank {late['rank']}")


def check_stages(pipeline, record, where):
    layers = sorted(layer for stage in pipeline["stages"] for layer in stage["layers"])
    if layers != list(range(record["layers"])) or len(pipeline["stages"]) != record["parallel"]["pp"]:
        raise Wrong(f"{where}.pipeline.stages do not hold each layer once")


def check_ring(phase, record, where):
    steps = phase["ring"]
    cp = record["parallel"]["cp"]
    if [step["step"] for step in steps] != list(range(cp)) or cp == 1:
        raise Wrong(f"{where} has steps {[step['step'] for step in steps]} for cp {cp}")
    for i, step in enumerate(steps):
        check_sum(step["transfer_ms"], [step["hidden_ms"], step["exposed_ms"]], 1e-9 * max(1.0, step["transfer_ms"]),
                  f"{where}[{i}].transfer_ms")
    if steps[-1]["sent_bytes"] != 0:
        raise Wrong(f"{where}: {steps[-1]['sent_bytes']} bytes are sent on after the last step")
    # Replicas may have unequal numbers of steps; then the means are over different things.
    wire_ms = sum(device["wire_ms"] for device in phase["per_device"]) / record["world_size"]
    if sum(step["exposed_ms"] for step in steps) > wire_ms * (1 + 1e-6) + 1e-9 and record["parallel"]["dp"] == 1:
        raise Wrong(f"{where}: more exposed transfer than the devices' {wire_ms} ms of interconnect")


def check_experts(experts, record, where):
    n_experts, top_k, world = experts["n_experts"], experts["top_k"], record["world_size"]
    if experts["exchange"] != record["parallel"]["expert_exchange"] or not 0 < top_k <= n_experts:
        raise Wrong(f"{where}: {top_k} of {n_experts}, exchange {experts['exchange']}")
    for layer in experts["per_layer"]:
        tokens, here = layer["tokens_per_expert"], f"{where} layer {layer['layer']}"
        if len(tokens) != n_experts or sum(tokens) == 0 or sum(tokens) % top_k:
            raise Wrong(f"{here}: {len(tokens)} experts got {sum(tokens)} tokens in all, {top_k} for each")
        if abs(layer["balance"] - sum(tokens) / n_experts / max(tokens)) > 1e-9:
            raise Wrong(f"{here}.balance is {layer['balance']} of {tokens}")
        distinct = sum(1 for n in tokens if n)
        if not top_k <= layer["touched"] <= distinct or not top_k - 1e-9 <= layer["touched_uniform"] <= n_experts:
            raise Wrong(f"{here}: touched {layer['touched']}, uniform {layer['touched_uniform']}, {distinct} got tokens")
        if layer["touched_bytes"] == 0 or not 0 < layer["passes"] <= sum(tokens) // top_k:
            raise Wrong(f"{here}: {layer['passes']} passes read {layer['touched_bytes']} bytes each")
    matrix = experts["all_to_all_bytes"]
    if matrix and [len(row) for row in matrix] != [world] * world:
        raise Wrong(f"{where}.all_to_all_bytes is not {world} x {world}")
    if bool(matrix) != (experts["exchange"] == "all-to-all" and record["parallel"]["ep"] > 1):
        raise Wrong(f"{where}.all_to_all_bytes of {len(matrix)} rows with exchange {experts['exchange']}")


def check_counters(record):
    counters = record["device_counters"]
    ranks = [c["rank"] for c in counters]
    if ranks != sorted(set(ranks) & set(range(record["world_size"]))):
        raise Wrong(f"record.device_counters of ranks {ranks} of {record['world_size']}")
    if counters and record["simulated"]:
        raise Wrong("record.device_counters of a simulated device")
    for c in counters:
        here = f"record.device_counters of rank {c['rank']}"
        if (c["dram_read_bytes"] is None) != (c["why_no_dram"] is not None):
            raise Wrong(f"{here}: DRAM bytes {c['dram_read_bytes']}, why not: {c['why_no_dram']}")
        if (c["sm_clock_mhz_min"] or 0) > (c["sm_clock_mhz_max"] or 0):
            raise Wrong(f"{here}: SM clock {c['sm_clock_mhz_min']} to {c['sm_clock_mhz_max']} MHz")
    # Ranks that share a device: the first one's.
    energy = {c["device"]: c["joules"] for c in reversed(counters)}
    known = bool(counters) and len(counters) == record["world_size"] and None not in energy.values()
    if (record["energy"] is not None) != known:
        raise Wrong(f"record.energy is {record['energy']} of {energy}")
    if known:
        total = record["energy"]["joules"]
        check_sum(total, list(energy.values()), 1e-9 * max(1.0, total), "record.energy")


def check(record):
    check_type(record, RECORD, "record")
    check_none_negative(record, "record")
    phases = record.get("phases")
    if not isinstance(phases, dict) or not phases or not set(phases) <= {"prefill", "decode", "mixed"}:
        raise Wrong(f"record.phases is {phases!r}")
    degrees = record["parallel"]
    if degrees["tp"] * degrees["pp"] * degrees["cp"] * degrees["dp"] != record["world_size"]:
        raise Wrong(f"record.world_size {record['world_size']} is not the product of {degrees}")
    check_counters(record)
    for name, phase in phases.items():
        check_phase(phase, record, f"record.phases.{name}")
    for i, request in enumerate(record["requests"]):
        if len(request["ids"]) != request["generated_tokens"]:
            raise Wrong(f"record.requests[{i}] has {len(request['ids'])} ids")
        if request["generated_tokens"] == 1 and request["tpot_ms"] is not None:
            raise Wrong(f"record.requests[{i}].tpot_ms of one token")
    if [memory["rank"] for memory in record["memory"]] != list(range(record["world_size"])):
        raise Wrong("record.memory is not one entry per rank")


def main(check_document, paths):
    for path in paths:
        with open(path, "rb") as file:
            data = file.read()
        try:
            check_document(strict_loads(data))
        except (Wrong, ValueError) as error:
            print(f"{path}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(check, sys.argv[1:]))
