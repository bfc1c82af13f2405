#!/usr/bin/env python3
"""Faults of every kind at seeded ranks and links, and runs without: does an acceptance find each and blame whom it should?

    python3 benchmarks/blame.py [--program build/testbed] [--ranks 4] [--seeds 20] [--kinds delay,flip,...]
                                [--model tests/fixtures/models/llama3_gqa] [--json blame.json]

Each run is `testbed accept --quick` with the stages that are to find the fault, and the fault injected; the clean runs
have all stages. Found: the verdict is the one that such a fault has. Rightly: in verdict.json the rank or device, or the
link, at which it was injected is blamed, a wrong value of the model's with its layer and all-reduce; a rank that was killed
is named as gone. What rank 0 can no longer write, as it was killed or stopped itself, the others say on standard error.
Wrongly: anyone else is. Exit code 1 unless all faults are found and blamed rightly, none wrongly, and all clean runs are
accepted and blame nobody."""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
TIMEOUT_S = 20
WAITED_FOR_S = 8  # of kinds that are found when the deadline has passed
LIMIT_S = 600
LAYERS = 2
FAULTS_OF_A_STEP = ["the embedding"] + [f"{part} of layer {i}" for i in range(LAYERS) for part in ("attention", "the MLP")]


def link(rng, ranks):
    return sorted(rng.sample(range(ranks), 2))


# kind: (stages that are to find it, make(rng, ranks) -> (option, whom: ranks))
def delay(rng, ranks):
    rank = rng.randrange(ranks)
    return f"delay:rank={rank},us={rng.choice((5000, 10000))}", [rank]


def flip(rng, ranks):
    rank = rng.randrange(ranks)
    return f"flip:rank={rank},at={rng.randint(1, 40)}", [rank]


def flip_in_the_model(rng, ranks):
    rank = rng.randrange(ranks)
    return f"flip:rank={rank},at={rng.randint(1, 4 * len(FAULTS_OF_A_STEP))}", [rank]


def slow_link(rng, ranks):
    pair = link(rng, ranks)
    return f"slow-link:rank={pair[0]},peer={pair[1]},gb_s={rng.choice((0.02, 0.05, 0.1))}", pair


def drop_link(rng, ranks):
    pair = link(rng, ranks)
    return f"drop-link:rank={pair[0]},peer={pair[1]}", pair


def slow_device(rng, ranks):
    # cpu-host tolerates half of the median, which a factor of 2 does not exceed.
    rank = rng.randrange(ranks)
    return f"slow-device:rank={rank},factor={rng.choice((3, 4, 5))}", [rank]


def kill(rng, ranks):
    rank = rng.randrange(ranks)
    return f"kill:rank={rank},at={rng.randint(1, 200)}", [rank]


def stop(rng, ranks):
    rank = rng.randrange(ranks)
    return f"stop:rank={rank},at={rng.randint(1, 200)}", [rank]


class Kind:
    """A fault, the cases that are to find it, and the verdict that it has."""

    def __init__(self, make, verdict, *cases, timeout_s=TIMEOUT_S):
        self.make, self.verdict, self.cases, self.timeout_s = make, verdict, cases, timeout_s


COLLECTIVE = ("--stage", "links,collectives")
KINDS = {
    "delay": Kind(delay, "reject", "--stage", "model", "--case", "model/{model} tp {ranks}"),
    "flip": Kind(flip, "corruption", "--stage", "collectives"),
    "flip-model": Kind(flip_in_the_model, "corruption", "--stage", "corruption", "--case", "tp {ranks}",
                       "--layers", str(LAYERS)),
    "slow-link": Kind(slow_link, "reject", "--stage", "links"),
    "drop-link": Kind(drop_link, "infrastructure", "--stage", "links", timeout_s=WAITED_FOR_S),
    "slow-device": Kind(slow_device, "reject", "--stage", "device"),
    "kill": Kind(kill, "infrastructure", *COLLECTIVE),
    "stop": Kind(stop, "infrastructure", *COLLECTIVE, timeout_s=WAITED_FOR_S),
    "clean": Kind(None, "accept")}
EXIT_CODES = {"accept": 0, "reject": 1, "incomplete": 2, "infrastructure": 3, "corruption": 4}


class Run:
    """One acceptance and what it said."""

    def __init__(self, args, kind, seed, fault):
        cases = [word.format(model=os.path.basename(args.model), ranks=args.ranks) for word in kind.cases]
        with tempfile.TemporaryDirectory() as folder:
            command = ["bash", os.path.join(ROOT, "scripts", "mpirun.sh"), str(LIMIT_S), str(args.ranks), args.program,
                       "accept", "--quick", "--device", "cpu", "--model", args.model, *cases, "--seed", str(seed),
                       "--timeout", str(kind.timeout_s), "--quiet", "--output", folder]
            command += ["--profile", args.profile] if args.profile else []
            command += ["--inject", fault] if fault else []
            began = time.monotonic()
            done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S + 30)
            self.seconds = time.monotonic() - began
            self.code, self.errors = done.returncode, done.stderr.decode(errors="replace")
            try:
                with open(os.path.join(folder, "verdict.json"), encoding="utf-8") as file:
                    self.verdict = json.load(file)
            except OSError:
                self.verdict = {"verdict": None, "cases": [], "reasons": []}
        self.blamed = [(blame["kind"], blame["ranks"]) for case in self.verdict["cases"] for blame in case["blamed"]]

    def has(self, name, kind):
        """A launcher has an exit code of its own for a rank that was killed."""
        return self.verdict["verdict"] == kind.verdict and (self.code == EXIT_CODES[kind.verdict] or
                                                            (name == "kill" and self.code != 0))

    def says_of(self, rank, *states):
        """Whether the ranks that are left say this of it: in the verdict, or if it was to write that, on standard error."""
        words = json.dumps(self.verdict["cases"])
        if rank == 0:
            words += "".join(line for line in self.errors.splitlines() if not line.startswith("mpirun"))
        return any(f"rank {rank} ({state})" in words for state in states)


def judged(name, whom, fault, run):
    """(rightly, wrongly)"""
    is_link = name.endswith("-link")
    # A layer's blame says where the values differ first; its ranks are whom it blames.
    right = [b for b in run.blamed if b[1] == whom and (b[0] == "link") == is_link]
    wrongly = len(right) < len(run.blamed)
    if name == "kill":
        return run.says_of(whom[0], "gone", "dead"), wrongly
    if name == "stop" and whom == [0]:
        return run.says_of(0, "stopped"), wrongly
    if name == "flip-model":
        at = int(fault.rsplit("=", 1)[1]) - 1
        words = f"rank {whom[0]}: the all-reduce of {FAULTS_OF_A_STEP[at % len(FAULTS_OF_A_STEP)]} gave it wrong values"
        return bool(right) and any(words in case["reason"] for case in run.verdict["cases"]), wrongly
    return bool(right) or name == "clean", wrongly


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "testbed"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--model", default=os.path.join(ROOT, "tests", "fixtures", "models", "llama3_gqa"))
    parser.add_argument("--profile", default="")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows, runs, missed = [], [], False
    for name in args.kinds.split(","):
        kind, of_kind = KINDS[name], []
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            # A string seeds by its bytes: the same in every process.
            fault, whom = kind.make(random.Random(f"{name} {seed}"), args.ranks) if kind.make else (None, [])
            run = Run(args, kind, seed, fault)
            found = run.has(name, kind)
            right, wrong = judged(name, whom, fault, run)
            of_kind.append({"kind": name, "seed": seed, "fault": fault, "whom": whom, "exit_code": run.code, "found": found,
                            "rightly": right, "wrongly": wrong, "blamed": run.blamed, "verdict": run.verdict["verdict"],
                            "reasons": run.verdict["reasons"], "seconds": run.seconds})
            if wrong or not right or not found:
                missed = True
                print(f"MISS {name} seed {seed}: {fault}: exit code {run.code}, {run.verdict['verdict']}, blamed "
                      f"{run.blamed}, {run.verdict['reasons']}\n{run.errors[-1500:]}", file=sys.stderr, flush=True)
            print(f"{name} seed {seed}: {run.seconds:.1f} s", file=sys.stderr, flush=True)
        runs += of_kind
        count = lambda what: sum(each[what] for each in of_kind)
        seconds = sorted(each["seconds"] for each in of_kind)
        rows.append(f"| {name} | {kind.verdict} | {args.seeds} | {count('found')} | "
                    f"{count('rightly') if kind.make else '-'} | {count('wrongly')} | "
                    f"{seconds[len(seconds) // 2]:.1f}, {seconds[-1]:.1f} |")
        print(rows[-1], file=sys.stderr, flush=True)
    print("| fault | verdict | runs | with this verdict | blamed rightly | blamed wrongly | seconds (median, most) |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(runs, file, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
