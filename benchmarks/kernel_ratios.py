"""The CPU kernels for docs/performance.md, from bench_cpu_kernels: matrix-vector beside the read loop, products beside
oneDNN."""
import json
import os
import statistics
import subprocess
import tempfile

from ratio_page import Row, Section, table

VECTOR = (("bf16", "bf16", 0.95, 1.0), ("int8-g32", "int8", 0.95, 1.0), ("q4_0", "int4", 0.88, 0.95),
          ("int4-g32", "int4 with zero points", 0.88, 0.95))
PRODUCT_FLOORS = {1: (0.92, 0.97), 2: (0.87, 0.95)}


def cores(n):
    return f"{n} core" + ("s" if n > 1 else "")


def shapes(results):
    return "; ".join(f"{r['n']}x{r['k']} {statistics.median(r['ratios']):.2f}" for r in results)


def rows_of(results):
    """Of the best instruction set: a row takes the rounds of all shapes together."""
    best = results[0]["isa"]

    def pick(**wanted):
        return [r for r in results if all(r[key] == value for key, value in wanted.items())]

    for weights, name, floor, aim in VECTOR:
        for n in (1, 2):
            found = pick(peer="read loop", isa=best, weights=weights, x="bf16", threads=n)
            ratios = [ratio for r in found for ratio in r["ratios"]]
            yield Row(f"matrix-vector to read loop, {name}, {cores(n)}", ratios, floor, aim, note=shapes(found),
                      fault="" if ratios else "not measured by bench_cpu_kernels")
    for n, (floor, aim) in PRODUCT_FLOORS.items():
        found = pick(peer="oneDNN", x="bf16", weights="bf16", threads=n)
        ratios = [ratio for r in found for ratio in r["ratios"]]
        yield Row(f"bf16 GEMM, M = 512, to oneDNN, {cores(n)}", ratios, floor, aim, note=shapes(found),
                  fault="" if ratios else "needs avx512_bf16")
    for weights, name, _, _ in VECTOR[1:]:
        for n in (1, 2):
            found = pick(peer="oneDNN u8s8", weights=weights, threads=n)
            yield Row(f"{name} GEMM, M = 512, to oneDNN u8s8, {cores(n)}", [x for r in found for x in r["ratios"]],
                      note=shapes(found))


def other_paths(results):
    best = results[0]["isa"]
    lines = [[r["isa"], r["x"], r["weights"], f"{r['m']} x {r['n']} x {r['k']}", r["threads"], r["peer"],
              f"{statistics.median(r['ratios']):.3f}"] for r in results if r["isa"] != best]
    return table(["instructions", "x", "weights", "m x n x k", "threads", "peer", "ratio"], lines)


def kernel_section(setup):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernels.json")
        done = subprocess.run([setup.kernels, "--rounds", "5" if setup.quick else "15", "--json", path], check=False,
                              stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{setup.kernels} failed:\n{done.stdout}")
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
    text = "Each side in one process, in turn; all go through memory of four times the last-level cache for M = 1. oneDNN's "\
           "u8s8 product has no scales to apply. The paths for lesser processors (`TESTBED_ISA`), to the same peers, which "\
           "always have the best instructions:\n\n" + other_paths(results)
    return Section("Kernels", rows_of(results), text)
