#!/usr/bin/env python3
"""Whole-engine decode against the read loop: llama3-8b shapes, 4 layers, on 1 and 2 ranks. The read loop runs on all
ranks between the repeats of the same process; MBU is weight and KV bytes per second over its median (docs/metrics.md).

  python3 benchmarks/engine.py [build/testbed]
"""
import sys

from testbed_run import launched

FLOOR = 0.7


def main():
    worst = 1.0
    print(f"{'split':<8}{'decode step ms':>16}{'min':>9}{'max':>9}{'read loop GB/s':>16}{'MBU':>7}   floor {FLOOR}")
    for name, ranks, split in (("1 rank", 1, ()), ("tp 2", 2, ("--tp", "2"))):
        record = launched(ranks, [*split, "--model", "llama3-8b", "--layers", "4", "--prompt-tokens", "16",
                                  "--gen-tokens", "17", "--warmup", "1", "--repeats", "7"], limit_s=300)
        decode = record["phases"]["decode"]
        step = record["timing"]["step_ms"]
        peak = decode["memory_domains"][0]["peak_gb_s"] * 1e9
        worst = min(worst, decode["mbu"])
        print(f"{name:<8}{step['median']:>16.2f}{step['min']:>9.2f}{step['max']:>9.2f}{peak * 1e-9:>16.1f}"
              f"{decode['mbu']:>7.2f}")
    sys.exit(worst < FLOOR)


if __name__ == "__main__":
    main()
