"""Writes the acceptance profiles of GPUs (configs/acceptance) from the measured tables (benchmarks/measured).

A figure that no table has is left out. Sizes of collectives are those that `accept` runs: powers of two.
"""

import argparse
import csv
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "aiconfigurator-core 0.12.0"
OPS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
LATENCY_UP_TO = 32 << 10
BANDWIDTH_FROM = 16 << 20
# Another NCCL, driver and host than the table's: its fits of one host miss it by 3 % (bandwidth), and a call that is not in
# a graph adds the host's time, which differs more than anything else.
BANDWIDTH_TOLERANCE = 0.10
LATENCY_TOLERANCE = 0.50


def table(name):
    with open(ROOT / "benchmarks" / "measured" / name, newline="") as f:
        return list(csv.DictReader(f))


def bus_factor(op, n):
    return 2 * (n - 1) / n if op == "all_reduce" else (n - 1) / n


def nccl_rows(gpu, op, dtype, n):
    rows = [r for r in table("collectives.csv") if r["source"].startswith("nccl") and
            (r["gpu"], r["op"], r["dtype"], int(r["n_gpus"])) == (gpu, op, dtype, n)]
    return rows[0]["source"], [(int(r["bytes"]), float(r["latency_us"])) for r in rows]


def expect(figure, fields, source, tolerance, points=None, expected=None):
    lines = ["", "[[expect]]", f'figure = "{figure}"']
    lines += [f'{k} = {v if isinstance(v, int) else chr(34) + v + chr(34)}' for k, v in fields.items()]
    if points:
        lines.append("by_bytes = [" + ", ".join(f"[{b}, {x:.4g}]" for b, x in points) + "]")
    else:
        lines.append(f"expected = {expected:.4g}")
    return lines + [f"tolerance = {tolerance:.2f}", f'source = "{source}"']


def collectives(gpu, peak_gb_s, nvls, tolerance):
    lines = []
    for table_op, op in OPS.items():
        for n in (2, 4, 8):
            source, points = nccl_rows(gpu, table_op, "half", n)
            where = f"collectives.csv of {PACKAGE}: {source}, 16-bit, {n} GPUs"
            fields = {"op": op, "ranks": n, "scope": "within-host"}
            lines += expect("collective.us", fields, where, LATENCY_TOLERANCE, [p for p in points if p[0] <= LATENCY_UP_TO])
            rate = lambda p: [(b, bus_factor(op, n) * b / us * 1e-3) for b, us in p if b >= BANDWIDTH_FROM]
            if nvls and op == "all_reduce" and n == 8:
                lines += expect("collective.busbw_gb_s", {**fields, "algorithm": "nvls"}, where + ", NVLS", tolerance, rate(points))
                source, points = nccl_rows(gpu, table_op, "int8", n)
                where = f"collectives.csv of {PACKAGE}: {source}, 8-bit, which NVLS does not sum, {n} GPUs"
                fields["algorithm"] = "ring"
            best = max(rate(points), key=lambda p: p[1])[1]
            where += f"; at best {100 * best / peak_gb_s:.0f} % of the link's {peak_gb_s:g} GB/s"
            lines += expect("collective.busbw_gb_s", fields, where, tolerance, rate(points))
    return lines


def device(gpu):
    rows = [r for r in table("gemm.csv") if r["gpu"] == gpu and r["dtype"] == "bfloat16"]
    size = lambda r: (int(r["m"]), int(r["n"]), int(r["k"]))
    us = lambda r: float(r["latency_us"])
    read = lambda r: 2 * size(r)[1] * size(r)[2] / us(r) * 1e-3
    flops = lambda r: 2 * size(r)[0] * size(r)[1] * size(r)[2] / us(r) * 1e-6
    # The table's largest matrix: smaller ones may lie in the cache.
    largest = max(size(r)[1] * size(r)[2] for r in rows)
    reading = max((r for r in rows if size(r)[0] == 1 and size(r)[1] * size(r)[2] == largest), key=read)
    most = max(size(r)[0] for r in rows)
    busy = max((r for r in rows if size(r)[0] == most), key=flops)
    text = lambda r: f"gemm.csv of {PACKAGE}: {r['source']}, [{r['m']}, {r['k']}] with [{r['n']}, {r['k']}]^T"
    return (expect("device.read_gb_s", {}, text(reading) + ", bytes of the matrix by time", 0.10, expected=read(reading)) +
            expect("device.gemm_tflop_s", {"dtype": "bf16"}, text(busy), 0.10, expected=flops(busy)))


def links(gpu, tolerance):
    source, points = nccl_rows(gpu, "alltoall", "half", 2)
    # Of S bytes each of two ranks keeps half and sends half.
    both = [(b // 2, b / us * 1e-3) for b, us in points if b // 2 in (16 << 20, 256 << 20)]
    where = f"collectives.csv of {PACKAGE}: {source}, all-to-all of 2 GPUs"
    return expect("link.both_ways_gb_s", {"scope": "within-host"}, where, tolerance, both)


def profile(name, description, needs, body):
    head = [f"# {description}", "# Written by benchmarks/acceptance_profiles.py; not tried on this hardware yet.",
            f'name = "{name}"', 'device = "cuda"', f'description = "{description}"', "tried_on_hardware = false",
            f"latency_up_to_bytes = {LATENCY_UP_TO}", f"bandwidth_from_bytes = {BANDWIDTH_FROM}", "cohort_tolerance = 0.10",
            "", "[requires]"] + needs
    return "\n".join(head + body) + "\n"


def between_hosts():
    where = "expert_normal.csv of " + PACKAGE + ": dispatch and combine on 4 nodes of 8 H100 level off at 44 to 46 GB/s per NIC"
    return expect("link.one_way_gb_s", {"bytes": 256 << 20, "scope": "between-hosts"}, where, 0.10, expected=45)


def profiles():
    h100 = ["devices_per_host = 8", 'device_name = "H100"', "device_memory_gb = 80", "dev_shm_gb = 1", "ecc = true"]
    a100 = ["devices_per_host = 8", 'device_name = "A100"', "device_memory_gb = 80", "dev_shm_gb = 1", "ecc = true"]
    l40s = ["devices_per_host = 8", 'device_name = "L40S"', "device_memory_gb = 45", "dev_shm_gb = 1", "ecc = true"]
    on_h100 = device("h100_sxm") + links("h100_sxm", BANDWIDTH_TOLERANCE) + collectives("h100_sxm", 450, True, BANDWIDTH_TOLERANCE)
    on_a100 = device("a100_sxm") + links("a100_sxm", BANDWIDTH_TOLERANCE) + collectives("a100_sxm", 300, False, BANDWIDTH_TOLERANCE)
    # Its times double and halve between neighbouring sizes (docs/calibration.md).
    on_l40s = device("l40s") + links("l40s", 0.25) + collectives("l40s", 32, False, 0.25)
    yield profile("h100-nvlink", "8 H100 SXM on NVLink 4 and NVSwitch, one host", h100, on_h100)
    yield profile("h100-ndr", "hosts of 8 H100 SXM, an NDR InfiniBand port each", h100, on_h100 + between_hosts())
    yield profile("a100-nvlink", "8 A100 SXM 80 GB on NVLink 3 and NVSwitch, one host", a100, on_a100)
    yield profile("l40s-pcie", "8 L40S on PCIe 4 x16, one host", l40s, on_l40s)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "configs" / "acceptance")
    folder = parser.parse_args().folder
    for text in profiles():
        name = text.split('name = "')[1].split('"')[0]
        (folder / f"{name}.toml").write_text(text)


if __name__ == "__main__":
    main()
