#!/usr/bin/env python3
"""Fits dispatch/* and combine/* of configs/links/{nvlink4,ndr-ib}.toml to benchmarks/measured/expert_*.csv.

The rows are DeepEP's two kernels on n nodes of 8 H100, a NIC for each GPU. Model, as row_exchange.cpp builds it:
  t = start + log2(n) * step + 2 sqrt(fill * x) + max(x, y)
x, y: what a rank sends over its NIC, over NVLink / the rate there; start, step, fill are the NIC's, on one node NVLink's.
low-latency: a row for each of the top 8 experts. hierarchical ("normal"): a row once to each node, handed on there to
each rank. Fitted on 1, 4 and 8 nodes; 2 nodes, and all rows of 288 experts, are held out. Prints the mean absolute error of
every kernel and node count, then the TOML (--write: into configs/links). Standard library only.
"""

import argparse
import csv
import math
import os
import re
import sys
from collections import defaultdict

from calibrate_links import EXPERTS_SOURCE, expert_part, least_relative_error

LOCAL = 8  # GPUs of a node
LINE_GB_S = {"nvlink4": 450.0, "ndr-ib": 50.0}
FITTED, FITTED_EXPERTS = (1, 4, 8), 256
# Bytes of a row of 7168: fp8 with a float scale per 128 going out, bf16 coming back.
ROW_BYTES = {"dispatch": 7168 + 4 * 7168 // 128, "combine": 2 * 7168}
# The kernels are given 20 SMs on one node (the only rows), 24 (the most measured) on several.
NORMAL_SMS = {1: 20, 2: 24, 4: 24, 8: 24}
LOW_LATENCY_TOKENS = 256  # a rank; the most measured on several nodes
# On 8 nodes routing is limited to 4 of them, as DeepEP's own test does: unlimited, the rows of combine up to 8192 tokens would need
# 62 GB/s of a NIC of 50. Expected distinct nodes and ranks of a token, top 8 of 256: exact without the limit,
# the mean of 1e6 drawn tokens with it.
LIMITED = {8: (3.983, 7.471)}
BIG_COMBINE_TOKENS = 8192  # on 8 nodes its rate falls to a third above them


def copies(nodes, experts, topk, kernel):
    """Rows of a token: (to nodes, to ranks), its own included."""
    if kernel == "low-latency":
        return topk, topk
    if nodes in LIMITED:
        return LIMITED[nodes]

    def distinct(groups):
        return groups * (1 - math.comb(experts - experts // groups, topk) / math.comb(experts, topk))
    return distinct(nodes), distinct(nodes * LOCAL)


class Row:
    """One operation of a row of a table. Megabytes that a rank sends over its NIC and over NVLink; busiest_bytes with its own."""

    def __init__(self, kernel, op, row, us):
        self.kernel, self.op, self.us = kernel, op, us
        self.nodes, self.tokens, self.experts = (int(row[k]) for k in ("node_num", "num_token", "num_experts"))
        to_nodes, to_ranks = copies(self.nodes, self.experts, int(row["num_topk"]), kernel)
        mb = self.tokens * ROW_BYTES[op] / 1e6
        self.busiest_bytes = to_ranks * mb * 1e6
        self.nic_mb = to_nodes * (self.nodes - 1) / self.nodes * mb
        in_node = 1 / self.nodes if kernel == "low-latency" else 1  # normal: what came by NIC is handed on
        self.link_mb = to_ranks * in_node * (LOCAL - 1) / LOCAL * mb

    def fitted(self):
        return self.nodes in FITTED and self.experts == FITTED_EXPERTS


def read_rows(folder):
    rows = []
    for kernel, name, suffix in (("low-latency", "expert_low_latency.csv", "_avg_t_us"),
                                 ("hierarchical", "expert_normal.csv", "_transmit_us")):
        with open(os.path.join(folder, name), newline="") as file:
            for row in csv.DictReader(file):
                if "dispatch_sms" in row and int(row["dispatch_sms"]) != NORMAL_SMS[int(row["node_num"])]:
                    continue
                rows += [Row(kernel, op, row, float(row[op + suffix])) for op in ROW_BYTES]
    return rows


class Protocol:
    def __init__(self, start, step, inverse, root, line_gb_s):
        self.start, self.step = start, step
        self.us_per_mb = 1e3 / line_gb_s + inverse
        self.fill = root**2 / (4 * self.us_per_mb)
        self.max_nodes, self.max_bytes = 0, 0

    def latency_us(self, nodes, mb):
        return self.start + math.log2(nodes) * self.step + 2 * math.sqrt(self.fill * mb * self.us_per_mb)

    def toml(self):
        values = {"max_nodes": self.max_nodes, "max_bytes": self.max_bytes, "start_us": self.start, "step_us": self.step,
                  "gb_s": 1e3 / self.us_per_mb, "fill_us": self.fill}
        kept = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in values.items() if v and v > 1e-6}
        return "{ " + ", ".join(f"{k} = {v}" for k, v in kept.items()) + " }"


def branch(row):
    """On several nodes the normal kernels' rate is fitted apart on up to 4 nodes, and on 8, where it is another."""
    if row.kernel == "low-latency" or row.nodes <= 4:
        return 0
    return 2 if row.op == "combine" and row.tokens > BIG_COMBINE_TOKENS else 1


def fit_nvlink(rows):
    rows = [r for r in rows if r.nodes == 1]
    line = LINE_GB_S["nvlink4"]
    table = [[1.0, r.link_mb, math.sqrt(r.link_mb)] for r in rows]
    c, _ = least_relative_error(table, [r.us for r in rows], [r.link_mb * 1e3 / line for r in rows])
    return [Protocol(c[0], 0.0, c[1], c[2], line)]


def fit_nic(rows):
    """Start, step and fill are shared by the branches, each has its rate."""
    rows = [r for r in rows if r.nodes > 1]
    line = LINE_GB_S["ndr-ib"]
    branches = sorted({branch(r) for r in rows})
    table = [[1.0, math.log2(r.nodes), math.sqrt(r.nic_mb)] + [r.nic_mb * (branch(r) == b) for b in branches] for r in rows]
    (start, step, root, *inverses), _ = least_relative_error(table, [r.us for r in rows],
                                                             [r.nic_mb * 1e3 / line for r in rows])
    protocols = [Protocol(start, step, inverse, root, line) for inverse in inverses]
    if len(protocols) > 1:
        protocols[0].max_nodes = 4
    if len(protocols) > 2:
        protocols[1].max_bytes = round(1.01 * max(r.busiest_bytes for r in rows if branch(r) == 1))
    if rows[0].kernel == "low-latency":
        protocols[0].max_bytes = round(1.01 * max(r.busiest_bytes for r in rows))
    return protocols


def predict(timing, r):
    link, nic = timing["nvlink4"][r.op, r.kernel][0], timing["ndr-ib"][r.op, r.kernel]
    link_us = r.link_mb * link.us_per_mb
    if r.nodes == 1:
        return link.latency_us(1, r.link_mb) + link_us
    nic = nic[branch(r)]
    return nic.latency_us(r.nodes, r.nic_mb) + max(link_us, r.nic_mb * nic.us_per_mb)


def report(timing, rows):
    for key in timing["nvlink4"]:
        errors = defaultdict(list)
        for r in (r for r in rows if (r.op, r.kernel) == key):
            errors[r.nodes, r.experts].append(100 * (predict(timing, r) / r.us - 1))
        parts = []
        for (nodes, experts), of in sorted(errors.items()):
            held = "" if nodes in FITTED and experts == FITTED_EXPERTS else " (held out)"
            parts.append(f"{nodes} nodes{'' if experts == 256 else f', {experts} experts'}: {sum(map(abs, of)) / len(of):.1f} %{held} "
                         f"[{min(of):+.0f}, {max(of):+.0f}]")
        print(f"{key[0] + '/' + key[1]:22}", "  ".join(parts))


def toml_lines(timing):
    lines = []
    for (op, kernel), protocols in timing.items():
        lines += [f'"{op}/{kernel}" = ['] + [f"  {protocol.toml()}," for protocol in protocols] + ["]"]
    return "\n".join(lines) + "\n"


def write(path, timing, errors):
    """Replaces dispatch and combine, and their part of the source; the rest of the file stays."""
    with open(path) as file:
        text = file.read()
    _, lines = expert_part(text)
    text = re.sub(EXPERTS_SOURCE, "", text.replace(lines, ""))
    text = re.sub(r'^(source = ".*)"$', lambda m: f'{m[1]}; experts: benchmarks/calibrate_experts.py on benchmarks/measured/'
                  f'expert_*.csv, mean absolute error: {errors}"', text, flags=re.MULTILINE)
    with open(path, "w") as file:
        file.write(text + toml_lines(timing))


def mean_error(timing, rows, nodes):
    """Of both kernels and ways."""
    of = [abs(predict(timing, r) / r.us - 1) for r in rows if r.nodes == nodes]
    return f"{100 * sum(of) / len(of):.1f} % on {nodes}{'' if nodes in FITTED else ' (held out)'}"


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", default=os.path.join(here, "measured"))
    parser.add_argument("--write", action="store_true", help="replace dispatch and combine in configs/links")
    args = parser.parse_args()
    rows = read_rows(args.tables)
    timing = {"nvlink4": {}, "ndr-ib": {}}
    for kernel in ("low-latency", "hierarchical"):
        for op in ROW_BYTES:
            fitted = [r for r in rows if r.kernel == kernel and r.op == op and r.fitted()]
            timing["nvlink4"][op, kernel] = fit_nvlink(fitted)
            timing["ndr-ib"][op, kernel] = fit_nic(fitted)
    report(timing, rows)
    for link, of_link in timing.items():
        nodes = (1,) if link == "nvlink4" else (2, 4, 8)
        errors = ", ".join(mean_error(timing, rows, n) for n in nodes) + " nodes"
        if args.write:
            write(os.path.join(here, "..", "configs", "links", f"{link}.toml"), of_link, errors)
        else:
            print(f"\n{link}: {errors}\n{toml_lines(of_link)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
