#!/usr/bin/env python3
"""Refits the op-time model of kernels/sim/op_time.cpp to benchmarks/measured/*.csv and prints each table's error.

The fit sees every second weight shape (GEMM: n, k) or head count (attention: heads, KV heads); the error is printed for
those and for the others. A shape's time is the mean of its sources. Rows that would need more than the datasheet's
bandwidth are dropped: their data did not come from memory. docs/calibration.md has the model; the unit test
op_time_calibration_test evaluates the C++ code on the same tables. Needs numpy and scipy.
"""
import argparse
import collections
import csv
import pathlib
import tomllib

import numpy as np
from scipy.optimize import minimize

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEASURED = ROOT / "benchmarks/measured"
PRESETS = {"h100_sxm": "h100-sxm", "a100_sxm": "a100-80", "l40s": "l40s"}  # name in the tables -> preset

# As in kernels/sim/op_time.cpp; shared by all tables, chosen on H100 and A100 bf16 and H100 fp8 together.
TILES = [(256, 128), (128, 256), (128, 128), (64, 128), (128, 64), (64, 64), (32, 128), (16, 128)]
K_SPLITS = (1, 2, 4, 8, 16, 32)
SMALL_TILE_COST = 0.2
RIDGE_POWER = 4.0
TILE_FILL_K = 256.0

# decode.csv: 200 tokens are generated into a static cache that is read whole; the head is not sharded (gpt-fast).
STEP_CONTEXT = 200


class Gpu:
    def __init__(self, table_name):
        self.name = PRESETS[table_name]
        with open(ROOT / f"configs/devices/{self.name}.toml", "rb") as file:
            spec = tomllib.load(file)
        self.bytes_per_s = spec["memory_gb_s"] * 1e9
        self.peak = {dtype: tflops * 1e12 for dtype, tflops in spec["peak_tflops"].items()}
        self.n_sm = spec["chip"]["n_sm"]


class Table:
    """Shapes [n, columns] and their times [n]; fitted[i]: the fit may see shape i."""

    def __init__(self, file, keep, columns, group, n_bytes, bytes_per_s):
        times = collections.defaultdict(list)
        self.n_dropped = 0
        with open(MEASURED / file, encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if not keep(row):
                    continue
                shape, time = tuple(int(row[c]) for c in columns), float(row["latency_us"]) * 1e-6
                if n_bytes(*shape) > bytes_per_s * time:
                    self.n_dropped += 1
                else:
                    times[shape].append(time)
        shapes = sorted(times)
        groups = sorted({group(*shape) for shape in shapes})
        self.columns = np.array(shapes, float).T
        self.times = np.array([np.mean(times[shape]) for shape in shapes])
        self.fitted = np.array([groups.index(group(*shape)) % 2 == 0 for shape in shapes])

    def errors(self, predicted, which):
        return np.abs(predicted[which] / self.times[which] - 1) * 100

    def report(self, name, model, params):
        predicted = model(*self.columns, *params)
        parts = []
        for label, which in (("fitted", self.fitted), ("held out", ~self.fitted), ("all", self.fitted | True)):
            error = self.errors(predicted, which)
            parts.append(f"{label} {np.median(error):.1f}/{np.percentile(error, 90):.1f}")
        return f"{name}: {len(self.times)} shapes, {self.n_dropped} rows dropped; median/p90 error %: " + ", ".join(parts)

    def fit(self, model, start):
        """Mean absolute log error: medians are what is reported, and outliers are other kernels' faults."""
        which = self.fitted
        shapes, times = self.columns[:, which], self.times[which]

        def loss(params):
            if min(params) < 0:
                return 10.0
            return np.mean(np.abs(np.log(model(*shapes, *params) / times)))

        best = None
        for scale in (1.0, 0.85, 1.15):
            params = np.array(start) * scale
            for _ in range(2):  # restarted: the simplex can collapse
                result = minimize(loss, params, method="Nelder-Mead", options={"maxiter": 3000, "xatol": 1e-5, "fatol": 1e-7})
                params = result.x
            if best is None or result.fun < best.fun:
                best = result
        return best.x


def gemm_model(gpu, dtype):
    operand = 1 if dtype == "fp8" else 2
    peak = gpu.peak["bf16" if dtype == "bfloat16" else dtype]

    def model(m, n, k, compute, memory, start_us):
        tiled = np.full(m.shape, np.inf)
        for tile_m, tile_n in TILES:
            slowdown = 1 + SMALL_TILE_COST * (128 / tile_m + 128 / tile_n - 1.5)
            n_tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n)
            for split in K_SPLITS:
                waves = np.ceil(n_tiles * split / gpu.n_sm)
                tile_flops = 2 * tile_m * tile_n * (k / split + TILE_FILL_K)
                tiled = np.minimum(tiled, waves * tile_flops * slowdown * gpu.n_sm / (compute * peak))
        loads = gemm_bytes(operand)(m, n, k) / (memory * gpu.bytes_per_s)
        return (tiled**RIDGE_POWER + loads**RIDGE_POWER) ** (1 / RIDGE_POWER) + start_us * 1e-6

    return model


def gemm_bytes(operand):
    return lambda m, n, k: operand * (n * k + m * k) + 2 * m * n  # results are 16-bit


def decode_bytes(batch, context, heads, kv_heads):
    return 4 * batch * 128 * (context * kv_heads + heads)  # K and V, q and o: 16-bit, head_dim 128


def decode_model(gpu):
    def model(batch, context, heads, kv_heads, memory, start_us, unit_us, split_us):
        moved = decode_bytes(batch, context, heads, kv_heads) / (memory * gpu.bytes_per_s)
        small = start_us + unit_us * batch * kv_heads / gpu.n_sm + split_us * np.log2(1 + context / 128)
        return moved + small * 1e-6

    return model


def prefill_model(gpu, decode_memory):
    def model(batch, context, heads, kv_heads, compute, memory, start_us):
        flops = 4 * 128 * batch * heads * context * (context + 1) / 2
        kv, qo = 512 * batch * context * kv_heads, 512 * batch * context * heads
        moved = (kv / decode_memory + qo / memory) / gpu.bytes_per_s
        return flops / (compute * gpu.peak["bf16"]) + moved + start_us * 1e-6

    return model


def fit_gemm(table_name, dtype):
    gpu = Gpu(table_name)
    table = Table("gemm.csv", lambda r: r["gpu"] == table_name and r["dtype"] == dtype, ("m", "n", "k"),
                  lambda m, n, k: (n, k), gemm_bytes(1 if dtype == "fp8" else 2), gpu.bytes_per_s)
    model = gemm_model(gpu, dtype)
    return table, model, table.fit(model, [0.75, 0.8, 4.0])


def attention_table(table_name, phase, n_bytes):
    # One query row is decode, whatever the table calls it.
    keep = lambda r: r["gpu"] == table_name and r["phase"] == phase and not (phase == "prefill" and r["context"] == "1")
    return Table("attention.csv", keep, ("batch", "context", "n_heads", "n_kv_heads"),
                 lambda b, c, heads, kv_heads: (heads, kv_heads), n_bytes, Gpu(table_name).bytes_per_s)


def fit_attention(table_name):
    gpu = Gpu(table_name)
    decode = attention_table(table_name, "decode", decode_bytes)
    decode_params = decode.fit(decode_model(gpu), [0.85, 10.0, 2.0, 1.0])
    prefill = attention_table(table_name, "prefill", lambda *shape: 0)
    model = prefill_model(gpu, decode_params[0])
    return (decode, decode_model(gpu), decode_params), (prefill, model, prefill.fit(model, [0.6, 0.4, 12.0]))


def all_reduce_s(n_gpus, n_bytes):
    """What the decode rows' program called: NCCL, 16-bit."""
    if n_gpus == 1:
        return 0.0
    with open(MEASURED / "collectives.csv", encoding="utf-8") as lines:
        times = [float(r["latency_us"]) * 1e-6 for r in csv.DictReader(lines)
                 if (r["gpu"], r["op"], r["dtype"]) == ("a100_sxm", "all_reduce", "half") and r["source"].startswith("nccl")
                 and (int(r["n_gpus"]), int(r["bytes"])) == (n_gpus, n_bytes)]
    return np.mean(times)


def step_parts(gpu, linear, decode, model_name, tp):
    """Seconds of one decode step without per-layer overhead, and the layers: GEMMs, attention, two all-reduces a layer,
    and the head. Norms, rope and activation move under 0.1 % of the bytes."""
    with open(ROOT / f"configs/models/{model_name}.toml", "rb") as file:
        c = tomllib.load(file)
    gemm, attend = gemm_model(gpu, "bfloat16"), decode_model(gpu)
    product = lambda n, k: gemm(*(np.array([float(x)]) for x in (1, n, k)), *linear[:2], 0.0)[0]
    q, kv = c["n_heads"] * c["head_dim"] / tp, c["n_kv_heads"] * c["head_dim"] / tp
    layer = (product(q, c["d_model"]) + 2 * product(kv, c["d_model"]) + product(c["d_model"], q)
             + product(2 * c["d_ff"] / tp, c["d_model"]) + product(c["d_model"], c["d_ff"] / tp)
             + 2 * all_reduce_s(tp, 2 * c["d_model"]))
    layer += attend(1, STEP_CONTEXT, c["n_heads"] / tp, c["n_kv_heads"] / tp, decode[0], 0.0, *decode[2:])
    return c["n_layers"] * layer + product(c["vocab_size"], c["d_model"]), c["n_layers"]


def fit_layer_overhead(gpu, linear, decode):
    """The constant that makes the larger of the two fitted errors (TP 1 and 8 of 7 B) smallest."""
    with open(MEASURED / "decode.csv", encoding="utf-8") as lines:
        steps = {(r["model"], int(r["tp"])): 1 / float(r["tokens_per_s"]) for r in csv.DictReader(lines)}
    parts = {key: step_parts(gpu, linear, decode, *key) for key in steps}
    # Relative errors w (c - x) of the two rows, w = layers / step: equal and opposite at the weighted mean of x.
    fitted = [("llama2-7b", 1), ("llama2-7b", 8)]
    x = [(steps[k] - parts[k][0]) / parts[k][1] for k in fitted]
    w = [parts[k][1] / steps[k] for k in fitted]
    overhead = np.dot(w, x) / sum(w)
    for key, step in steps.items():
        error = (parts[key][0] + parts[key][1] * overhead) / step - 1
        print(f"# decode step {key[0]} tp {key[1]}: {error * 100:+.1f} %, {'fitted' if key in fitted else 'held out'}")
    return overhead


def toml_number(value):
    return f"{value:.4g}"


def print_timing(linear, linear_fp8, decode, prefill, layer_overhead):
    print("[timing]")
    print(f"tile_fill_k = {TILE_FILL_K:g}")
    if layer_overhead is not None:
        print(f"layer_overhead_us = {toml_number(layer_overhead * 1e6)}")
    if decode is not None:
        print(f"decode_unit_us = {toml_number(decode[2])}\ndecode_split_us = {toml_number(decode[3])}")
    tables = [("linear", linear), ("linear_fp8", linear_fp8)]
    if decode is not None:
        tables += [("attention_decode", (1.0, decode[0], decode[1])), ("attention_prefill", prefill)]
    tables.append(("elementwise", (1.0, linear[1], 0.0)))
    for name, (compute, memory, start_us) in tables:
        values = [f"memory_efficiency = {toml_number(memory)}"]
        if compute != 1.0:
            values.insert(0, f"compute_efficiency = {toml_number(compute)}")
        if start_us > 0.01:
            values.append(f"start_us = {toml_number(start_us)}")
        print(f"{name} = {{ {', '.join(values)} }}")


def calibrate(table_name):
    print(f"# {Gpu(table_name).name}")
    table, model, linear = fit_gemm(table_name, "bfloat16")
    print("#", table.report("gemm bf16", model, linear))
    linear_fp8 = linear
    if "fp8" in Gpu(table_name).peak:
        table, model, linear_fp8 = fit_gemm(table_name, "fp8")
        print("#", table.report("gemm fp8", model, linear_fp8))
    decode = prefill = None
    if table_name != "l40s":  # no attention rows
        (table, model, decode), (prefill_table, prefill_model_, prefill) = fit_attention(table_name)
        print("#", table.report("attention decode", model, decode))
        print("#", prefill_table.report("attention prefill", prefill_model_, prefill))
    overhead = fit_layer_overhead(Gpu(table_name), linear, decode) if table_name == "a100_sxm" else None
    print_timing(linear, linear_fp8, decode, prefill, overhead)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpu", nargs="*", choices=[*PRESETS, []], help="tables to fit; default all")
    for table_name in parser.parse_args().gpu or PRESETS:
        calibrate(table_name)


if __name__ == "__main__":
    main()
