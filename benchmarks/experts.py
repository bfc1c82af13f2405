#!/usr/bin/env python3
"""The two ways in which tokens meet experts, and what a batch reads of them.

All-reduce against all-to-all: qwen3-30b-a3b shapes, 2 layers, tp 2 ep 2, measured here (one thread a rank, alternating
rounds), and simulated on DGX H100 at tp 4 ep 4 (it has 4 KV heads). Touched experts: simulated with even routing, beside
E (1 - (1 - k/E)^B), which is what B tokens that choose k of E experts touch on average. Exits with 1 where the mean over
the layers is more than BOUND deviations away.

  python3 benchmarks/experts.py [build/testbed [ROUNDS]]
"""
import math
import statistics
import sys

from testbed_run import measured, median_and_spread, print_load, simulated

MODEL = ["--model", "qwen3-30b-a3b"]
WAYS = ("all-reduce", "all-to-all")
BATCHES = (1, 2, 4, 8, 16, 32, 64)
BOUND = 5.0


def compare(name, runs):
    """runs: of each round {way: record}."""
    for phase in ("prefill", "decode"):
        first, second = ([run[way]["phases"][phase]["step_ms"] for run in runs] for way in WAYS)
        ratios = [b / a for a, b in zip(first, second)]
        shares = [runs[-1][way]["phases"][phase]["shares"]["interconnect"] for way in WAYS]
        print(f"{name:<36}{phase:<9}{statistics.median(first):>10.2f}{statistics.median(second):>10.2f}"
              f"   {median_and_spread(ratios):<22}{shares[0]:>8.1%}{shares[1]:>8.1%}", flush=True)


def missed_deviation(n_experts, top_k, batch):
    """Of the number of experts that B tokens leave untouched: one is missed by a token with probability 1 - k/E, two by
    (1 - k/E)(1 - k/(E - 1)), tokens are independent."""
    one = (1 - top_k / n_experts) ** batch
    two = ((1 - top_k / n_experts) * (1 - top_k / (n_experts - 1))) ** batch
    return math.sqrt(max(0.0, n_experts * one * (1 - one) + n_experts * (n_experts - 1) * (two - one * one)))


def touched(batch):
    """(layers, touched and its formula, bytes a layer) of a decode step."""
    record = simulated("dgx-h100", [*MODEL, "--batch", str(batch), "--prompt-tokens", "16", "--gen-tokens", "2"])
    experts = record["phases"]["decode"]["experts"]
    layers = experts["per_layer"]
    mean = statistics.fmean(layer["touched"] for layer in layers)
    n_bytes = statistics.fmean(layer["touched_bytes"] for layer in layers)
    deviation = missed_deviation(experts["n_experts"], experts["top_k"], batch) / math.sqrt(len(layers))
    return mean, layers[0]["touched_uniform"], n_bytes, deviation, experts["n_experts"]


def print_touched():
    """Whether all are within BOUND."""
    print(f"\nqwen3-30b-a3b decode, simulated: experts of a layer that a batch reads, mean over the layers\n"
          f"{'batch':<8}{'touched':>9}{'formula':>9}{'sigma':>7}{'MB a layer':>12}{'of all':>8}{'MB a token':>12}")
    good = True
    for batch in BATCHES:
        mean, formula, n_bytes, deviation, n_experts = touched(batch)
        print(f"{batch:<8}{mean:>9.2f}{formula:>9.2f}{deviation:>7.2f}{n_bytes * 1e-6:>12.1f}{mean / n_experts:>8.1%}"
              f"{n_bytes * 1e-6 / batch:>12.1f}", flush=True)
        good = good and abs(mean - formula) <= BOUND * deviation + 1e-9
    return good


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print_load()
    print(f"{'':<36}{'phase':<9}{'AR ms':>10}{'A2A ms':>10}   {'A2A / AR':<22}{'AR wire':>8}{'A2A wire':>9}")
    small = [*MODEL, "--layers", "2", "--tp", "2", "--ep", "2", "--batch", "8", "--prompt-tokens", "64", "--gen-tokens",
             "17", "--warmup", "1", "--repeats", "3"]
    compare("CPU, tp 2 ep 2, 2 layers, 8 x 64",
            [{way: measured(2, [*small, "--expert-exchange", way]) for way in WAYS} for _ in range(rounds)])
    for batch, prompt_tokens in ((1, 512), (64, 512)):
        options = [*MODEL, "--tp", "4", "--ep", "4", "--batch", str(batch), "--prompt-tokens", str(prompt_tokens),
                   "--gen-tokens", "3"]
        compare(f"simulated, tp 4 ep 4, {batch} x {prompt_tokens}",
                [{way: simulated("dgx-h100", [*options, "--expert-exchange", way]) for way in WAYS}])
    sys.exit(not print_touched())


if __name__ == "__main__":
    main()
