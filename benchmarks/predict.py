#!/usr/bin/env python3
"""Prediction against measurement on this machine. Each round probes it (mpirun -np 2 testbed probe --toml), runs real
configurations, simulates the same on the probed preset, and takes predicted / measured for prefill (time to the first
token) and decode (time per token after it). The device of the preset is one rank measured by itself; what two do to each
other is in the shared memory's rate and in the links, so tp 2 and pp 2 are predictions.

Rounds alternate probe and runs because shared machines change; the figure is the median of the rounds' ratios, with the
lowest and highest beside it. One thread a rank: all splits then compute alike. Exits with 1 if a median is off by more
than the bound.

  python3 benchmarks/predict.py [--program build/testbed] [--rounds 3] [--model llama3-8b] [--layers 2] [--bound 0.10]
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile

from testbed_run import LAUNCHER, ROOT, record_of

LIMIT_S = "600"
SPLITS = {"tp 1": (1, ()), "tp 2": (2, ("--tp", "2")), "pp 2": (2, ("--pp", "2"))}
PHASES = {"prefill": "ttft_ms", "decode": "tpot_ms"}
PROBE_MAX_BYTES = 64 << 20  # beyond any payload of these runs


def workload(args):
    return ["--model", args.model, "--layers", str(args.layers), "--prompt-tokens", str(args.prompt_tokens),
            "--gen-tokens", str(args.gen_tokens), "--ignore-eos"]


def measure(args, split):
    ranks, options = SPLITS[split]
    return record_of([LAUNCHER, LIMIT_S, str(ranks), args.program, "--device", "cpu", "--threads", "1", *options,
                      *workload(args), "--check", "off", "--warmup", "1", "--repeats", "3"])


def predict(args, split, preset):
    _, options = SPLITS[split]
    return record_of([args.program, "--device", "sim", "--cluster", preset, *options, *workload(args)])


def one_round(args, folder):
    """{(split, phase): (predicted ms, measured ms)}"""
    preset = os.path.join(folder, "probed.toml")
    subprocess.run([LAUNCHER, LIMIT_S, "2", args.program, "probe", "--device", "cpu", "--threads", "1", "--max-bytes",
                    str(PROBE_MAX_BYTES), "--quiet", "--toml", preset], check=True)
    pairs = {}
    for split in SPLITS:
        measured = measure(args, split)["timing"]
        predicted = predict(args, split, preset)["timing"]
        for phase, field in PHASES.items():
            pairs[split, phase] = predicted[field], measured[field]
    return pairs


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "testbed"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--gen-tokens", type=int, default=9)
    parser.add_argument("--bound", type=float, default=0.10)
    return parser.parse_args()


def main():
    args = parse_arguments()
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            rounds.append(one_round(args, folder))
            print(f"round {number + 1} of {args.rounds} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print(f"{args.model}, {args.layers} layers, {args.prompt_tokens} prompt tokens, medians of {args.rounds} rounds")
    print(f"{'split':<8}{'phase':<9}{'predicted ms':>14}{'measured ms':>14}{'ratio':>8}{'lowest':>8}{'highest':>9}"
          f"   bound {args.bound:.0%}")
    worst = 0.0
    for key in rounds[0]:
        pairs = [of[key] for of in rounds]
        ratios = [predicted / measured for predicted, measured in pairs]
        ratio = statistics.median(ratios)
        worst = max(worst, abs(ratio - 1.0))
        predicted, measured = (statistics.median(side) for side in zip(*pairs))
        print(f"{key[0]:<8}{key[1]:<9}{predicted:>14.2f}{measured:>14.2f}{ratio:>8.3f}{min(ratios):>8.3f}"
              f"{max(ratios):>9.3f}")
    sys.exit(worst > args.bound)


if __name__ == "__main__":
    main()
