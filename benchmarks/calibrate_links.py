#!/usr/bin/env python3
"""Fits the [timing] of configs/links/*.toml to benchmarks/measured/collectives.csv.

The model is ProtocolTiming of kernels/base/link_timing.hpp, closed for links that nothing else uses:
  t = start + steps * step + S/n * copy + x + 2 sqrt(fill * x),  x = bytes sent per rank / rate(n)
NVLink is fitted on 2 and 8 GPUs, 4 are held out; PCIe on all. Prints the mean absolute error of every
table and GPU count, then the TOML (--write: into configs/links). Standard library only.
"""

import argparse
import copy
import csv
import itertools
import math
import os
import re
import sys
from collections import defaultdict

MIB = 1 << 20
FITTED, HELD_OUT = (2, 8), (4,)
DTYPES = ("half", "int8")
LINKS = {  # link preset: (GPU of its table, line rate in GB/s, one direction)
    "nvlink4": ("h100_sxm", 450.0),
    "nvlink3": ("a100_sxm", 300.0),
    "pcie4-x16": ("l40s", 32.0),
}
# op of the table -> (key in the TOML, latency steps, bytes sent per rank / S)
NCCL = {
    "all_reduce": ("all_reduce/ring", lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
    "all_gather": ("all_gather/ring", lambda n: n - 1, lambda n: (n - 1) / n),
    "reduce_scatter": ("reduce_scatter/ring", lambda n: n - 1, lambda n: (n - 1) / n),
    "alltoall": ("all_to_all/direct", math.log2, lambda n: (n - 1) / n),
}
PCIE = {**NCCL, "alltoall": ("all_to_all/direct", math.log2,
                             lambda n: max((n - 1) / n, 2 * LINKS["pcie4-x16"][1] / SOCKET_GB_S * (n > 4)))}
NVLS = ("all_reduce/nvls", lambda n: 0, lambda n: 1 + 1 / n)
NVLS_FROM = 8 * MIB  # at 8 GPUs, where the ring's curve breaks; the switch does not sum int8
CUSTOM_UP_TO = 4 * MIB  # above it the engines hand over to NCCL
NVLINK_LIMITS = tuple(1 << i for i in range(11, 24))  # of protocols, per rank
PCIE_LIMITS = tuple(1 << i for i in range(11, 24, 2))
PCIE_SHARING = (1.0, 1.4, 1.8, 2.0, 2.2, 2.4)
CUSTOM_LIMITS = (512, 1024, 2048)
CUSTOM_SHARING = (0.0, 0.1, 0.2, 0.3)
# configs/clusters/l40s-8.toml: of 8 GPUs on 2 sockets, 16 pairs exchange S/8 each over the socket link.
SOCKET_GB_S = 67.2
PROTOCOLS = ("ll", "ll128", "simple")


class Row:
    def __init__(self, row):
        self.gpu, self.source, self.op, self.dtype = (row[k] for k in ("gpu", "source", "op", "dtype"))
        self.n, self.bytes, self.us = int(row["n_gpus"]), int(row["bytes"]), float(row["latency_us"])


class Protocol:
    """One [[timing."op/algorithm"]]; microseconds, GB/s, bytes."""

    def __init__(self, coefficients, line_gb_s, sharing=0.0, max_bytes=0, name=""):
        self.start, self.step, inverse, self.copy, root = coefficients
        self.us_per_mb = 1e3 / line_gb_s + inverse
        self.fill = root**2 / (4 * self.us_per_mb)
        self.gb_s, self.sharing, self.max_bytes, self.name = 1e3 / self.us_per_mb, sharing, max_bytes, name
        self.most_payload_bytes = 0

    def us(self, shape, n, n_bytes):
        _, steps, share = shape
        x = share(n) * n_bytes / 1e6 / self.gb_s * 1e3 * (n / 2) ** self.sharing
        return self.start + steps(n) * self.step + n_bytes / n / 1e6 * self.copy + x + 2 * math.sqrt(self.fill * x)

    def toml(self):
        values = {"protocol": f'"{self.name}"' if self.name else "", "max_bytes": self.max_bytes or "",
                  "most_payload_bytes": self.most_payload_bytes or "",
                  "start_us": self.start, "step_us": self.step, "gb_s": self.gb_s, "sharing": self.sharing,
                  "copy_us_per_mb": self.copy, "fill_us": self.fill}
        kept = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in values.items()
                if v and not (isinstance(v, float) and v < 1e-6)}
        return "{ " + ", ".join(f"{k} = {v}" for k, v in kept.items()) + " }"


def terms(shape, n, n_bytes, sharing):
    """What start, step, 1/rate, copy and the fill's root are multiplied with."""
    _, steps, share = shape
    sent_mb = share(n) * n_bytes / 1e6 * (n / 2) ** sharing
    return [1.0, steps(n), sent_mb, n_bytes / n / 1e6, math.sqrt(sent_mb)]


def non_negative_least_squares(rows, targets):
    """Coordinate descent on columns scaled to norm 1."""
    k = len(rows[0])
    norm = [math.sqrt(sum(r[j] ** 2 for r in rows)) or 1.0 for j in range(k)]
    gram = [[sum(r[i] * r[j] for r in rows) / norm[i] / norm[j] for j in range(k)] for i in range(k)]
    projection = [sum(r[i] * t for r, t in zip(rows, targets)) / norm[i] for i in range(k)]
    c = [0.0] * k
    for _ in range(400):
        change = 0.0
        for i in range(k):
            if gram[i][i] == 0:
                continue
            new = max(0.0, c[i] + (projection[i] - sum(gram[i][j] * c[j] for j in range(k))) / gram[i][i])
            change = max(change, abs(new - c[i]))
            c[i] = new
        if change < 1e-9:
            break
    return [ci / ni for ci, ni in zip(c, norm)]


def least_relative_error(rows, targets, fixed):
    """Non-negative coefficients with the least mean |error|/target, by reweighting squares. `fixed` is
    the part of the targets that no coefficient changes."""
    weights = [1 / t for t in targets]
    for _ in range(25):
        c = non_negative_least_squares([[v * w for v in r] for r, w in zip(rows, weights)],
                                       [(t - f) * w for t, f, w in zip(targets, fixed, weights)])
        errors = [abs(sum(ci * v for ci, v in zip(c, r)) + f - t) / t for r, f, t in zip(rows, fixed, targets)]
        weights = [1 / t / math.sqrt(max(e, 0.004)) for t, e in zip(targets, errors)]
    return c, sum(errors)


def fit_protocol(rows, shape, line_gb_s, sharing, **names):
    table = [terms(shape, r.n, r.bytes, sharing) for r in rows]
    fixed = [t[2] * 1e3 / line_gb_s for t in table]  # the line rate is the least time there is
    c, error = least_relative_error(table, [r.us for r in rows], fixed)
    return Protocol(c, line_gb_s, sharing, **names), error


def fit_protocols(rows, shape, line_gb_s, between, sharings=(0.0,)):
    """Three protocols: the pair of limits with the least error."""
    limits = [0, *between, 1 << 62]
    parts = {}
    for i, low in enumerate(limits):
        for high in limits[i + 1:]:
            part = [r for r in rows if low < r.bytes // r.n <= high]
            if len({r.bytes for r in part}) >= 3:
                fits = (fit_protocol(part, shape, line_gb_s, sharing, max_bytes=high if high < 1 << 62 else 0)
                        for sharing in sharings)
                parts[low, high] = min(fits, key=lambda fit: fit[1])
    best = None
    for a in limits[1:-1]:
        for b in limits[1:-1]:
            cut = [parts.get(edge) for edge in ((0, a), (a, b), (b, 1 << 62))]
            if None in cut:
                continue
            error = sum(e for _, e in cut)
            if best is None or error < best[0]:
                best = error, [p for p, _ in cut]
    for protocol, name in zip(best[1], PROTOCOLS):
        protocol.name = name
    return best[1]


def message(protocol):
    """An all-to-all between two GPUs is a message of half its payload each way."""
    one = copy.copy(protocol)
    one.copy, one.max_bytes = 2 * protocol.copy, protocol.max_bytes // 2
    return one


def us_of(protocols, shape, n, n_bytes):
    return next(p for p in protocols if not p.max_bytes or n_bytes // n <= p.max_bytes).us(shape, n, n_bytes)


def by_nvls(row):
    return row.n == 8 and row.dtype == "half" and row.bytes >= NVLS_FROM


ONE_SHOT = ("all_reduce/one-shot", math.log2, lambda n: n - 1)
TWO_SHOT = ("all_reduce/two-shot", math.log2, lambda n: 2 * (n - 1) / n)


SHOTS = (ONE_SHOT, TWO_SHOT)


def fit_shots(rows, line_gb_s, sharings):
    """One- and two-shot kernels: same latency step, a start and a rate each; every row goes to the faster."""
    two_shot = {id(r): r.n > 2 and r.bytes > 256 * 1024 for r in rows}
    for _ in range(20):
        table, fixed = [], []
        for r in rows:
            two = two_shot[id(r)]
            start, step, sent_mb, *_ = terms(SHOTS[two], r.n, r.bytes, sharings[two])
            table.append([start, step, sent_mb * (not two), float(two), sent_mb * two])
            fixed.append(sent_mb * 1e3 / line_gb_s)
        c, error = least_relative_error(table, [r.us for r in rows], fixed)
        shots = (Protocol([c[0], c[1], c[2], 0.0, 0.0], line_gb_s, sharings[0]),
                 Protocol([c[0] + c[3], c[1], c[4], 0.0, 0.0], line_gb_s, sharings[1]))
        faster = {id(r): shots[1].us(TWO_SHOT, r.n, r.bytes) < shots[0].us(ONE_SHOT, r.n, r.bytes) for r in rows}
        if faster == two_shot:
            break
        two_shot = faster
    return shots, error


def fit_custom(rows, line_gb_s):
    """Protocols of both kernels. Payloads too small to use every thread block start faster: the first
    of the one-shot's."""
    rows = [r for r in rows if r.n in FITTED]
    best = None
    for limit in CUSTOM_LIMITS:
        small, small_error = fit_protocol([r for r in rows if r.bytes // r.n <= limit], ONE_SHOT, line_gb_s, 0.0,
                                          max_bytes=limit)
        rest = [r for r in rows if r.bytes // r.n > limit]
        for sharings in itertools.product(CUSTOM_SHARING, CUSTOM_SHARING):
            (one, two), error = fit_shots(rest, line_gb_s, sharings)
            one.most_payload_bytes = two.most_payload_bytes = CUSTOM_UP_TO
            if best is None or error + small_error < best[0]:
                best = error + small_error, {ONE_SHOT[0]: [small, one], TWO_SHOT[0]: [two]}
    return best[1]


def mean_errors(rows, predict):
    """GPU count -> mean absolute error in percent."""
    errors = defaultdict(list)
    for r in rows:
        errors[r.n].append(100 * abs(predict(r) / r.us - 1))
    return {n: sum(e) / len(e) for n, e in sorted(errors.items())}


def report(title, rows, predict, held_out):
    errors = mean_errors(rows, predict)
    worst = max(rows, key=lambda r: abs(predict(r) / r.us - 1))
    every = sum(abs(predict(r) / r.us - 1) for r in rows) / len(rows)
    text = "  ".join(f"{n}: {e:4.1f} %{' (held out)' if n in held_out else ''}" for n, e in errors.items())
    print(f"{title:42} {text}  all: {100 * every:4.1f} %  worst: {100 * (predict(worst) / worst.us - 1):+.0f} % at n = {worst.n}, "
          f"{worst.bytes} bytes")
    return errors


def is_outlier(row, rows):
    """Over twice what both neighbouring sizes took: a measurement that went wrong."""
    near = [r.us for r in rows if r.n == row.n and r.bytes in (row.bytes // 2, row.bytes * 2)]
    return len(near) == 2 and row.us > 2 * max(near)


def calibrate_nccl(link, rows):
    """All of NCCL's collectives; the errors of 16-bit all-reduces."""
    gpu, line_gb_s = LINKS[link]
    nvlink = link.startswith("nvlink")
    timing, all_reduce_errors = {}, {}
    for op, shape in (NCCL if nvlink else PCIE).items():
        of_op = [r for r in rows if r.op == op]
        nvls = [r for r in of_op if link == "nvlink4" and op == "all_reduce" and by_nvls(r)]
        fitted = [r for r in of_op if r not in nvls and (r.n in FITTED or not nvlink)]
        timing[shape[0]] = (fit_protocols(fitted, shape, line_gb_s, NVLINK_LIMITS) if nvlink else
                            fit_protocols(fitted, shape, line_gb_s, PCIE_LIMITS, PCIE_SHARING))
        if nvls:
            timing[NVLS[0]] = [fit_protocol(nvls, NVLS, line_gb_s, 0.0)[0]]

        def predict(r, shape=shape, op=op):
            us = us_of(timing[shape[0]], shape, r.n, r.bytes)
            if op == "all_reduce" and NVLS[0] in timing and r.dtype == "half":
                us = min(us, us_of(timing[NVLS[0]], NVLS, r.n, r.bytes))
            return us

        if op == "alltoall":
            timing["send/direct"] = [message(protocol) for protocol in timing[shape[0]]]

        for dtype in DTYPES:
            errors = report(f"{link} {shape[0]} NCCL {dtype}", [r for r in of_op if r.dtype == dtype], predict,
                            HELD_OUT if nvlink else ())
            if op == "all_reduce" and dtype == "half":
                all_reduce_errors = errors
    return timing, all_reduce_errors


def calibrate_custom(link, rows):
    line_gb_s = LINKS[link][1]
    fitted = [r for r in rows if r.source.startswith("vllm") and r.bytes <= CUSTOM_UP_TO]
    timing = fit_custom(fitted, line_gb_s)

    def predict(r):
        return min(us_of(timing[shape[0]], shape, r.n, r.bytes) for shape in SHOTS)

    report(f"{link} all_reduce one-/two-shot vLLM", fitted, predict, HELD_OUT)
    report(f"{link}   without rows that went wrong", [r for r in fitted if not is_outlier(r, fitted)], predict,
           HELD_OUT)
    other = [r for r in rows if r.source.startswith("trtllm") and r.bytes <= CUSTOM_UP_TO]
    report(f"{link}   against TensorRT-LLM's, not fitted", other, predict, ())
    return timing


def timing_toml(timing, errors):
    held = "4 GPUs held out" if timing.keys() >= {ONE_SHOT[0]} else "none held out"
    error = ", ".join(f"{e:.1f} % on {n}" for n, e in errors.items())
    lines = ["[timing]", f'source = "benchmarks/calibrate_links.py on benchmarks/measured/collectives.csv; NCCL '
             f'all-reduce, mean absolute error: {error} GPUs, {held}"']
    for key, protocols in timing.items():
        lines += [f'"{key}" = ['] + [f"  {protocol.toml()}," for protocol in protocols] + ["]"]
    return "\n".join(lines) + "\n"


EXPERTS_SOURCE = r"; experts: [^\"]*"


def expert_part(text):
    """What calibrate_experts.py wrote into a link's TOML: its part of the source, and its tables."""
    source = re.search(EXPERTS_SOURCE, text)
    return source[0] if source else "", "".join(re.findall(r'^"(?:dispatch|combine)/[^"]*" = \[\n(?:  .*\n)*\]\n', text, re.MULTILINE))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", default=os.path.join(here, "measured", "collectives.csv"))
    parser.add_argument("--link", choices=LINKS, action="append", help="only this one")
    parser.add_argument("--write", action="store_true", help="replace [timing] in configs/links")
    args = parser.parse_args()
    with open(args.table, newline="") as file:
        rows = [Row(row) for row in csv.DictReader(file)]
    for link in args.link or LINKS:
        of_gpu = [r for r in rows if r.gpu == LINKS[link][0]]
        timing, errors = calibrate_nccl(link, [r for r in of_gpu if r.source.startswith("nccl")])
        if link.startswith("nvlink"):
            timing.update(calibrate_custom(link, of_gpu))
        toml = timing_toml(timing, errors)
        if not args.write:
            print(toml)
            continue
        path = os.path.join(here, "..", "configs", "links", f"{link}.toml")
        with open(path) as file:
            text = file.read()
        source, lines = expert_part(text)
        with open(path, "w") as file:
            file.write(text.split("[timing]")[0] + re.sub(r'^(source = ".*)"$', lambda m: m[1] + source + '"', toml,
                                                          flags=re.MULTILINE) + lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
