#!/usr/bin/env python3
"""Faults of every kind at seeded ranks and links, and runs without: does an acceptance find each and blame whom it should?

    python3 benchmarks/blame.py [--program build/testbed] [--ranks 4] [--seeds 20] [--kinds delay,flip,...]
                                [--model tests/fixtures/models/llama3_gqa] [--json blame.json]

Each run is `testbed accept --quick` with the stages that are to find the fault, and the fault injected; the clean runs
have all stages. Found: the verdict is not accept. Rightly: the device or rank, or the link, at which it was injected is
blamed. Wrongly: anyone else is. Exit code 1 unless all faults are found and blamed rightly, none wrongly, and no clean run
blames anyone."""
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


def link(rng, ranks):
    return sorted(rng.sample(range(ranks), 2))


# kind: (stages that are to find it, make(rng, ranks) -> (option, whom: ranks))
def delay(rng, ranks):
    rank = rng.randrange(ranks)
    return f"delay:rank={rank},us={rng.choice((5000, 10000))}", [rank]


def flip(rng, ranks):
    rank = rng.randrange(ranks)
    return f"flip:rank={rank},at={rng.randint(1, 40)}", [rank]


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


KINDS = {"delay": ("model", delay), "flip": ("collectives,corruption", flip), "slow-link": ("links", slow_link),
         "drop-link": ("links", drop_link), "slow-device": ("device", slow_device),
         "kill": ("links,collectives", kill), "stop": ("links,collectives", stop)}
ALL = "preflight,device,links,collectives,model,corruption"


def accept(args, kind, stages, seed, faults):
    """(exit code, verdict or None, standard error, seconds)"""
    with tempfile.TemporaryDirectory() as folder:
        command = ["bash", os.path.join(ROOT, "scripts", "mpirun.sh"), str(LIMIT_S), str(args.ranks), args.program, "accept",
                   "--quick", "--device", "cpu", "--model", args.model, "--stage", stages, "--seed", str(seed),
                   "--timeout", str(WAITED_FOR_S if kind in ("drop-link", "stop") else TIMEOUT_S), "--quiet", "--output", folder]
        if args.profile:
            command += ["--profile", args.profile]
        for fault in faults:
            command += ["--inject", fault]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S + 30)
        took = time.monotonic() - began
        try:
            with open(os.path.join(folder, "verdict.json"), encoding="utf-8") as file:
                verdict = json.load(file)
        except OSError:
            verdict = None
    return done.returncode, verdict, done.stderr.decode(errors="replace"), took


def blames(verdict):
    return [(blame["kind"], blame["ranks"]) for case in (verdict or {"cases": []})["cases"] for blame in case["blamed"]]


def gone(verdict, errors, rank):
    """A rank that died is gone before anybody can be asked: the last words and the launcher name it."""
    text = json.dumps(verdict) + errors
    return f"rank {rank} (gone)" in text or f"rank {rank} (dead)" in text or f"process rank {rank} " in text


def judged(kind, whom, code, verdict, errors):
    """(found, rightly, wrongly)"""
    found = blames(verdict)
    is_link = kind.endswith("-link")
    # A layer's blame says where the values differ first; its ranks are whom it blames.
    right = [b for b in found if b[1] == whom and (b[0] == "link") == is_link]
    wrong = [b for b in found if b not in right]
    if kind == "kill":
        return code != 0, bool(right) or gone(verdict, errors, whom[0]), bool(wrong)
    if kind == "stop" and not found:  # the writer of verdicts was stopped: the others say so
        return code != 0, f"rank {whom[0]} (stopped)" in errors, False
    return code != 0, bool(right), bool(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "testbed"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join([*KINDS, "clean"]))
    parser.add_argument("--model", default=os.path.join(ROOT, "tests", "fixtures", "models", "llama3_gqa"))
    parser.add_argument("--profile", default="")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows, runs, missed = [], [], False
    for kind in args.kinds.split(","):
        n_found = n_right = n_wrong = 0
        seconds = []
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            # A string seeds by its bytes: the same in every process.
            rng = random.Random(f"{kind} {seed}")
            stages, make = KINDS.get(kind, (ALL, None))
            fault, whom = make(rng, args.ranks) if make else (None, [])
            code, verdict, errors, took = accept(args, kind, stages, seed, [fault] if fault else [])
            seconds.append(took)
            if make:
                found, right, wrong = judged(kind, whom, code, verdict, errors)
            else:
                found, right, wrong = code != 0, True, bool(blames(verdict))
            n_found, n_right, n_wrong = n_found + found, n_right + right, n_wrong + wrong
            is_miss = wrong or not right or (bool(make) and not found)
            missed = missed or is_miss
            runs.append({"kind": kind, "seed": seed, "fault": fault, "whom": whom, "exit_code": code, "found": found,
                         "rightly": right, "wrongly": wrong, "blamed": blames(verdict),
                         "reasons": (verdict or {}).get("reasons"), "seconds": took})
            if is_miss:
                print(f"MISS {kind} seed {seed}: {fault}: exit code {code}, blamed {blames(verdict)}, "
                      f"{(verdict or {}).get('reasons')}\n{errors[-1500:]}", file=sys.stderr, flush=True)
        rows.append((kind, args.seeds, n_found, n_right if kind != "clean" else None, n_wrong, sorted(seconds)))
        print(f"{kind}: done", file=sys.stderr, flush=True)
    print("| fault | runs | found | blamed rightly | blamed wrongly | seconds (median, most) |")
    print("|---|---|---|---|---|---|")
    for kind, n, found, right, wrong, seconds in rows:
        name = "none (clean; found: not accepted)" if kind == "clean" else kind
        print(f"| {name} | {n} | {found} | {'-' if right is None else right} | {wrong} | "
              f"{seconds[len(seconds) // 2]:.1f}, {seconds[-1]:.1f} |")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(runs, file, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
