#!/usr/bin/env python3
"""--tp-comm all-reduce against reduce-scatter: step times as ratios, measured on tp 2 here (one thread a rank, alternating
rounds) and simulated on tp 8 of DGX H100. The payload is what one tp group's collectives of a step work on.

  python3 benchmarks/tp_comm.py [build/testbed [ROUNDS]]
"""
import statistics
import sys

from testbed_run import measured, median_and_spread, print_load, simulated

WAYS = ("all-reduce", "reduce-scatter")
SMALL = ["--model", "llama3-8b", "--layers", "4", "--prompt-tokens", "512", "--gen-tokens", "17", "--warmup", "1",
         "--repeats", "3", "--tp", "2"]


def large(prompt_tokens, batch):
    return ["--model", "llama3-70b", "--tp", "8", "--prompt-tokens", str(prompt_tokens), "--batch", str(batch),
            "--gen-tokens", "3"]


def step_ms(record, phase):
    return record["phases"][phase]["step_ms"]


def payload_mb(record, phase):
    rows = record["phases"][phase]["collectives"]
    return sum(row["payload_bytes_per_step"] for row in rows if row["axis"] == "tp") * 1e-6


def interconnect_ms(record, phase):
    return record["phases"][phase]["shares"]["interconnect"] * record["phases"][phase]["breakdown_step_ms"]


def compare(name, runs):
    """runs: of each round {way: record}."""
    for phase in ("prefill", "decode"):
        first, second = ([step_ms(run[way], phase) for run in runs] for way in WAYS)
        ratios = [b / a for a, b in zip(first, second)]
        moved = [payload_mb(runs[-1][way], phase) for way in WAYS]
        wire = [statistics.median(interconnect_ms(run[way], phase) for run in runs) for way in WAYS]
        print(f"{name:<40}{phase:<9}{statistics.median(first):>10.2f}{statistics.median(second):>10.2f}"
              f"   {median_and_spread(ratios):<22}{wire[0]:>9.2f}{wire[1]:>9.2f}{moved[0]:>9.1f}{moved[1]:>9.1f}", flush=True)


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print_load()
    print(f"{'':<40}{'phase':<9}{'AR ms':>10}{'RS ms':>10}   {'RS / AR':<22}{'AR wire':>9}{'RS wire':>9}{'AR MB':>9}{'RS MB':>9}")
    compare("CPU, tp 2, llama3-8b, 4 layers",
            [{way: measured(2, [*SMALL, "--tp-comm", way]) for way in WAYS} for _ in range(rounds)])
    for prompt_tokens, batch in ((512, 1), (4096, 1), (512, 64)):
        compare(f"simulated, tp 8, llama3-70b {batch} x {prompt_tokens}",
                [{way: simulated("dgx-h100", [*large(prompt_tokens, batch), "--tp-comm", way]) for way in WAYS}])


if __name__ == "__main__":
    main()
