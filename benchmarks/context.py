#!/usr/bin/env python3
"""What context parallelism gains on this machine: prefill of a long prompt, llama3-8b shapes, 2 layers, on cp 1 and cp 2
with one thread a rank, in one step and in the default chunks. Rounds alternate; a ratio is of the two runs of a round.
Below it what each ring step did (docs/metrics.md, "Ring attention"). Exits with 1 if cp 2 with zigzag placement, one
step, takes more than BOUND of cp 1.

  python3 benchmarks/context.py [build/testbed [ROUNDS]]
"""
import statistics
import sys

from testbed_run import measured, median_and_spread, print_load

BOUND = 0.6
PROMPT_TOKENS = 8128
STEPS = {"one step": ("--max-step-tokens", "8192"), "default chunks": ()}
SPLITS = {"cp 1": (1, ()), "cp 2 zigzag": (2, ("--cp", "2")),
          "cp 2 contiguous": (2, ("--cp", "2", "--cp-layout", "contiguous"))}


def prefill(split, steps):
    ranks, options = SPLITS[split]
    record = measured(ranks, ["--model", "llama3-8b", "--layers", "2", "--prompt-tokens", str(PROMPT_TOKENS),
                              "--gen-tokens", "1", "--warmup", "0", "--repeats", "1", *options, *STEPS[steps]], 900)
    return record["timing"]["ttft_ms"], record["phases"]["prefill"]


def print_ring(name, phase):
    print(f"  {name}, ms per step of {phase['breakdown_step_ms']:.0f} (breakdown pass, {phase['steps']} a prompt)")
    print(f"  {'ring step':<11}{'compute':>10}{'transfer':>10}{'hidden':>9}{'exposed':>9}{'wait':>9}{'sent MB':>9}")
    for step in phase["ring"]:
        most = "<=" if step["transfer_is_bound"] else ""
        print(f"  {step['step']:<11}{step['compute_ms']:>10.1f}{most + format(step['transfer_ms'], '.1f'):>10}"
              f"{most + format(step['hidden_ms'], '.1f'):>9}{step['exposed_ms']:>9.2f}{step['wait_ms']:>9.1f}"
              f"{step['sent_bytes'] * 1e-6:>9.1f}")


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print_load()
    zigzag = 0.0
    for steps in STEPS:
        runs = [{split: prefill(split, steps) for split in SPLITS} for _ in range(rounds)]
        print(f"{steps}: {PROMPT_TOKENS} tokens, {rounds} rounds")
        for split in SPLITS:
            times = [run[split][0] for run in runs]
            ratios = [run[split][0] / run["cp 1"][0] for run in runs]
            print(f"  {split:<17}{statistics.median(times):>10.0f} ms   of cp 1: {median_and_spread(ratios)}", flush=True)
            if steps == "one step" and split == "cp 2 zigzag":
                zigzag = statistics.median(ratios)
        for split in list(SPLITS)[1:]:
            print_ring(split, runs[-1][split][1])
    sys.exit(zigzag > BOUND)


if __name__ == "__main__":
    main()
