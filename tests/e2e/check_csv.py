"""Strict reader of --csv: python3 check_csv.py record.csv [...]. RFC 4180 (CRLF, a header, equal columns), numbers with a
decimal point, the parts of a device sum to its step. Exit code 1 says what is wrong."""
import csv
import io
import math
import re
import sys

PARTS = ("weights_ms", "kv_ms", "compute_ms", "wire_ms", "wait_ms", "bubble_ms", "overhead_ms")
INTEGERS = ("layers", "world_size", "ep_degree", "rank", "tp", "pp", "cp", "dp", "steps", "weight_bytes", "kv_bytes", "flops")
NUMBERS = ("step_ms", *PARTS)
NULLABLE = ("timed_step_ms", "mfu", "mbu", "ring_compute_ms", "ring_hidden_ms", "ring_exposed_ms", "experts_touched",
            "experts_touched_uniform", "experts_worst_balance")
TEXTS = ("cp_placement", "expert_exchange", "tp_comm")


class Wrong(Exception):
    pass


def number(text, where):
    if not re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text):
        raise Wrong(f"{where}: {text!r} is not a number")
    value = float(text)
    if not math.isfinite(value):
        raise Wrong(f"{where}: {text!r} is not finite")
    return value


def check(data):
    text = data.decode("utf-8")
    if not text.endswith("\r\n"):
        raise Wrong("the last line does not end in CRLF")
    rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    header, lines = rows[0], rows[1:]
    if not lines or len(set(header)) != len(header):
        raise Wrong(f"no lines, or a column twice: {header}")
    seen = set()
    for i, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise Wrong(f"line {i} has {len(line)} fields, the header {len(header)}")
        row = dict(zip(header, line))
        for name in INTEGERS:
            if not re.fullmatch(r"\d+", row[name]):
                raise Wrong(f"line {i}: {name} is {row[name]!r}")
        for name in NULLABLE:
            if row[name]:
                number(row[name], f"line {i} {name}")
        for name in TEXTS:
            if not row[name]:
                raise Wrong(f"line {i}: {name} is empty")
        values = {name: number(row[name], f"line {i} {name}") for name in NUMBERS}
        if min(values.values()) < 0:
            raise Wrong(f"line {i}: negative time")
        if abs(sum(values[name] for name in PARTS) - values["step_ms"]) > 1e-6 * max(1.0, values["step_ms"]):
            raise Wrong(f"line {i}: the parts do not sum to the step")
        if (row["phase"], row["rank"]) in seen or row["phase"] not in ("prefill", "decode", "mixed"):
            raise Wrong(f"line {i}: phase {row['phase']} rank {row['rank']}")
        seen.add((row["phase"], row["rank"]))


def main(paths):
    for path in paths:
        with open(path, "rb") as file:
            data = file.read()
        try:
            check(data)
        except (Wrong, csv.Error, ValueError) as error:
            print(f"{path}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
