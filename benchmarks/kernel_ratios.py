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
OTHER_VECTORS = ("int8-row", "int8-g128", "int4-g128", "q4_1", "fp8-tensor", "fp8-row", "fp8-block128")
BATCHED = (("bf16", "bf16"), ("int8-g32", "int8"), ("q4_0", "int4"))
BATCHES = (4, 8, 16, 64)
PRODUCT_FLOORS = {1: (0.92, 0.97), 2: (0.87, 0.95)}


def cores(n):
    return f"{n} core" + ("s" if n > 1 else "")


class Kernels:
    """What bench_cpu_kernels measured, as rows of the processor's best level of instructions."""

    def __init__(self, measured):
        self.best, self.results = measured["best_isa"], measured["results"]

    def row(self, name, wanted, *bounds, not_held=""):
        wanted = {"isa": self.best, **wanted}
        found = [r for r in self.results if all(r[key] == value for key, value in wanted.items())]
        cases = {f"{r['n']}x{r['k']}": r["ratios"] for r in found}
        return Row.of_worst(f"{name}, {cores(wanted['threads'])}", cases, *bounds, note=self.best, not_held=not_held,
                            fault="" if cases else "not measured by bench_cpu_kernels")

    def vector_rows(self):
        def wanted(weights, m, n):
            return {"peer": "read loop", "x": "bf16", "weights": weights, "m": m, "threads": n}

        for weights, name, *bounds in VECTOR:
            for n in (1, 2):
                yield self.row(f"matrix-vector to read loop, {name}", wanted(weights, 1, n), *bounds)
        for weights in OTHER_VECTORS:
            for n in (1, 2):
                yield self.row(f"matrix-vector to read loop, {weights}", wanted(weights, 1, n))
        for weights, name in BATCHED:
            for m in BATCHES:
                for n in (1, 2):
                    yield self.row(f"{m} rows with weights read once to read loop, {name}", wanted(weights, m, n))

    def product_rows(self):
        lacks_bf16 = "" if self.best == "avx512_bf16" else "this processor has no avx512_bf16"
        for n, bounds in PRODUCT_FLOORS.items():
            yield self.row("bf16 GEMM, M = 512, to oneDNN", {"peer": "oneDNN", "x": "bf16", "threads": n}, *bounds,
                           not_held=lacks_bf16)
        for n in PRODUCT_FLOORS:
            yield self.row("f32 GEMM, M = 512, to oneDNN", {"peer": "oneDNN", "x": "f32", "threads": n})
        for weights, name, *_ in VECTOR[1:]:
            for n in PRODUCT_FLOORS:
                yield self.row(f"{name} GEMM, M = 512, to oneDNN u8s8", {"peer": "oneDNN u8s8", "weights": weights,
                                                                         "threads": n})

    def lesser_levels(self):
        lines = [[r["isa"], r["x"], r["weights"], f"{r['m']} x {r['n']} x {r['k']}", r["threads"], r["peer"],
                  f"{statistics.median(r['ratios']):.3f}"] for r in self.results if r["isa"] != self.best]
        return table(["instructions", "x", "weights", "m x n x k", "threads", "peer", "ratio"], lines)


def kernel_section(setup):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernels.json")
        done = subprocess.run([setup.kernels, "--rounds", "5" if setup.quick else "15", "--json", path], check=False,
                              stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{setup.kernels} failed:\n{done.stdout}")
        with open(path, encoding="utf-8") as file:
            kernels = Kernels(json.load(file))
    text = f"Rows are of this processor's best level of instructions, {kernels.best}. Each side in one process, in "\
           "turn; all go through memory of four times the last-level cache for up to 64 rows. A row of several shapes "\
           "is held by the worst one. oneDNN's u8s8 product has no scales to apply. The paths for lesser processors "\
           "(`TESTBED_ISA`), to the same peers, which always have the best instructions:\n\n" + kernels.lesser_levels()
    return Section("Kernels", [*kernels.vector_rows(), *kernels.product_rows()], text)
