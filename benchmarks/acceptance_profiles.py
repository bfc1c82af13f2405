"""Writes the acceptance profiles of GPUs (configs/acceptance) from the measured tables (benchmarks/measured).

A figure that no table has is left out, or derived from one and its source begins with "derived:". Sizes of collectives are
those that `accept` runs: powers of two.
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
# Of what is derived for collectives between hosts: no table has one, and their start takes some of the time.
DERIVED_TOLERANCE = 0.25
# What `accept` multiplies on GPUs as fast as these: GemmRate's widest, [n, n] with [n, n]^T.
GEMM_WIDTH = 8192
CAUTION = ("The tables have sizes that are slower than larger ones (two ways of doing it, of which a run took either). So a size is "
           "expected to do",
           "what the worst of those did that should be no worse: smaller ones (time), larger ones (bandwidth), and a neighbour that is "
           "such an exception.")


def table(name):
    with open(ROOT / "benchmarks" / "measured" / name, newline="") as f:
        return list(csv.DictReader(f))


def bus_factor(op, n):
    return 2 * (n - 1) / n if op == "all_reduce" else (n - 1) / n


def nccl_rows(gpu, op, dtype, n):
    rows = [r for r in table("collectives.csv") if r["source"].startswith("nccl") and
            (r["gpu"], r["op"], r["dtype"], int(r["n_gpus"])) == (gpu, op, dtype, n)]
    return rows[0]["source"], [(int(r["bytes"]), float(r["latency_us"])) for r in rows]


def cautious(points, worse):
    """CAUTION, of points from that which should be best to that which should be worst; worse is min or max."""
    expected = []
    for i, (size, _) in enumerate(points):
        taken = points[:i + 1]
        if i + 2 < len(points) and worse(points[i + 1][1], points[i + 2][1]) != points[i + 2][1]:
            taken = points[:i + 2]  # the next one is worse than the one after it
        expected.append((size, worse(v for _, v in taken)))
    return expected


def times(points):
    return cautious([p for p in points if p[0] <= LATENCY_UP_TO], max)


def rates(points, bytes_moved):
    """GB/s on the plateau of what moves bytes_moved for each byte of the payload."""
    measured = [(b, bytes_moved * b / us * 1e-3) for b, us in points if b >= BANDWIDTH_FROM]
    return cautious(measured[::-1], min)[::-1]


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
            lines += expect("collective.us", fields, where, LATENCY_TOLERANCE, times(points))
            rate = lambda p: rates(p, bus_factor(op, n))
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
    # Two serving engines' libraries: the slower one is what can be expected of any.
    busy = sorted((r for r in rows if size(r) == (GEMM_WIDTH,) * 3), key=flops)
    of_each = ", ".join(f"{r['source']} {flops(r):.0f}" for r in busy)
    gemm = f"gemm.csv of {PACKAGE}: [{GEMM_WIDTH}, {GEMM_WIDTH}] with [{GEMM_WIDTH}, {GEMM_WIDTH}]^T, the slower of {of_each}"
    text = lambda r: f"gemm.csv of {PACKAGE}: {r['source']}, [{r['m']}, {r['k']}] with [{r['n']}, {r['k']}]^T"
    return (expect("device.read_gb_s", {}, text(reading) + ", bytes of the matrix by time", 0.10, expected=read(reading)) +
            expect("device.gemm_tflop_s", {"dtype": "bf16"}, gemm, 0.10, expected=flops(busy[0])))


def links(gpu, tolerance):
    source, points = nccl_rows(gpu, "alltoall", "half", 2)
    # Of S bytes each of two ranks keeps half and sends half.
    both = [(b // 2, b / us * 1e-3) for b, us in points if b // 2 in (16 << 20, 256 << 20)]
    where = f"collectives.csv of {PACKAGE}: {source}, all-to-all of 2 GPUs"
    scope = {"scope": "within-host"}
    one_way = [(b, rate / 2) for b, rate in both]
    return (expect("link.both_ways_gb_s", scope, where, tolerance, both) +
            expect("link.one_way_gb_s", scope, "derived: one way of both at once, " + where, tolerance, one_way))


def profile(name, description, needs, body):
    head = [f"# {description}", "# Written by benchmarks/acceptance_profiles.py; not tried on this hardware yet.",
            *(f"# {line}" for line in CAUTION),
            f'name = "{name}"', 'device = "cuda"', f'description = "{description}"', "tried_on_hardware = false",
            f"latency_up_to_bytes = {LATENCY_UP_TO}", f"bandwidth_from_bytes = {BANDWIDTH_FROM}", "cohort_tolerance = 0.10",
            "", "[requires]"] + needs
    return "\n".join(head + body) + "\n"


def between_hosts():
    """Of NICs alone. Each way at once, for that is how dispatch and combine move what they move."""
    nic = 45
    level = f"dispatch and combine on 4 nodes of 8 H100 level off at 44 to 46 GB/s per NIC and way (expert_normal.csv of {PACKAGE})"
    scope = {"scope": "between-hosts"}
    far = {"bytes": 256 << 20, **scope}
    lines = expect("link.one_way_gb_s", far, level, 0.10, expected=nic)
    lines += expect("link.both_ways_gb_s", far, "both ways of " + level, 0.10, expected=2 * nic)
    # A rank that is alone on its host has one NIC, and its bus bandwidth is the NIC's; with more ranks there, more NICs share.
    where = "derived: bus bandwidth over one NIC a host, " + level
    sizes = [64 << 20, 128 << 20, 256 << 20, 512 << 20]
    for op in OPS.values():
        for n in (2, 4, 8):
            lines += expect("collective.busbw_gb_s", {"op": op, "ranks": n, **scope}, where, DERIVED_TOLERANCE, [(b, nic) for b in sizes])
    # Of all ranks, however many they are: a long payload, for the ring's steps take their time.
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        lines += expect("collective.busbw_gb_s", {"op": op, **scope}, where, DERIVED_TOLERANCE, [(512 << 20, nic)])
    return lines


def profiles():
    h100 = ["devices_per_host = 8", 'device_name = "H100"', "device_memory_gb = 80", "dev_shm_gb = 1", "ecc = true"]
    a100 = ["devices_per_host = 8", 'device_name = "A100"', "device_memory_gb = 80", "dev_shm_gb = 1", "ecc = true"]
    l40s = ["devices_per_host = 8", 'device_name = "L40S"', "device_memory_gb = 45", "dev_shm_gb = 1", "ecc = true"]
    on_h100 = device("h100_sxm") + links("h100_sxm", BANDWIDTH_TOLERANCE) + collectives("h100_sxm", 450, True, BANDWIDTH_TOLERANCE)
    on_a100 = device("a100_sxm") + links("a100_sxm", BANDWIDTH_TOLERANCE) + collectives("a100_sxm", 300, False, BANDWIDTH_TOLERANCE)
    ndr = "hosts of 8 H100 SXM, an NDR InfiniBand port for each GPU; between hosts only rates are expected, from the port's"
    # Its times double and halve between neighbouring sizes (docs/calibration.md).
    on_l40s = device("l40s") + links("l40s", 0.25) + collectives("l40s", 32, False, 0.25)
    yield profile("h100-nvlink", "8 H100 SXM on NVLink 4 and NVSwitch, one host", h100, on_h100)
    yield profile("h100-ndr", ndr, h100, on_h100 + between_hosts())
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
