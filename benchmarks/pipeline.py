#!/usr/bin/env python3
"""Do pipeline stages overlap? Two stages on two ranks: the bubble measured beside the formula for equal stages and beside
what the stages' own busy times give (docs/metrics.md). Messages are of 100 kB and more, which must travel while the
sender computes. Fails if a step with several microbatches takes as long as its stages one after the other.

  python3 benchmarks/pipeline.py [build/testbed]
"""
import sys

from testbed_run import launched


def main():
    serial = False
    print(f"{'microbatches':<14}{'phase':<9}{'step ms':>9}{'stages busy ms':>20}{'measured':>10}{'of stages':>11}{'formula':>9}")
    for m in (1, 2, 4, 8):
        record = launched(2, ["--pp", "2", "--batch", "8", "--microbatches", str(m), "--model", "smollm2-135m",
                              "--layers", "8", "--prompt-tokens", "192", "--gen-tokens", "24", "--repeats", "3"],
                          limit_s=200)
        for phase in ("prefill", "decode"):
            part = record["phases"][phase]
            pipeline = part["pipeline"]
            busy = [stage["busy_ms"] for stage in pipeline["stages"]]
            print(f"{m:<14}{phase:<9}{part['breakdown_step_ms']:>9.2f}{' '.join(f'{b:.2f}' for b in busy):>20}"
                  f"{pipeline['bubble_measured']:>10.3f}{pipeline['bubble_from_stages']:>11.3f}"
                  f"{pipeline['bubble_formula']:>9.3f}")
            serial = serial or (m >= 4 and part["breakdown_step_ms"] > 0.95 * sum(busy))
    sys.exit(serial)


if __name__ == "__main__":
    main()
