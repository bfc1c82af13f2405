#!/usr/bin/env python3
"""Measures what docs/performance.md shows and writes that page: each ratio beside its peer, alternating in one process or
in turn. Exits with 1 if a floor is missed or a row could not be measured.

  bash benchmarks/peers.sh                      once: builds llama.cpp, ten minutes and more
  python3 benchmarks/performance.py             all of it, on a machine that does nothing else: half an hour
  python3 benchmarks/performance.py --quick --only engine --page -      fewer rounds, one section, to the terminal
"""
import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile

import collective_ratios
import engine_ratios
import kernel_ratios
import start_up
from bench_shapes import SHAPE
from testbed_run import ROOT

NO_LLAMA = "peer not built: run bash benchmarks/peers.sh"
BUILD, PEERS = os.path.join(ROOT, "build"), os.path.join(ROOT, "build", "peers")
PAGE = os.path.join(ROOT, "docs", "performance.md")
# What would make the program other than a user has it, in rows that do not say so.
NOT_IN_FORCE = ("TESTBED_ISA", "TESTBED_ONE_SHOT_BYTES")


class Setup:
    """What the sections need to know."""

    def __init__(self, args):
        self.program = os.path.join(args.build, "testbed")
        self.kernels = os.path.join(args.build, "bench_cpu_kernels")
        self.all_reduce = os.path.join(args.build, "bench_all_reduce")
        self.quick, self.rounds, self.no_llama = args.quick, args.rounds or (2 if args.quick else 5), NO_LLAMA
        self.python = os.path.join(args.peers, "llama-venv", "bin", "python")
        self.models = os.path.join(args.peers, "models")
        self.llama = self.python if self.imports("llama_cpp") else ""

    def imports(self, module):
        return os.path.exists(self.python) and subprocess.run([self.python, "-c", f"import {module}"], check=False,
                                                              stderr=subprocess.DEVNULL).returncode == 0

    def make_models(self):
        complete = os.path.join(self.models, "complete")
        if os.path.exists(complete):
            with open(complete, encoding="utf-8") as file:
                if json.load(file) == SHAPE:
                    return
        if not self.imports("gguf"):
            sys.exit(f"performance.py: no {self.models}, and nothing to write it with: run bash benchmarks/peers.sh")
        print(f"writing the 1 B model to {self.models}", file=sys.stderr)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_model.py")
        subprocess.run([self.python, script, self.models], check=True)


SECTIONS = {
    "kernels": kernel_ratios.kernel_section,
    "engine": engine_ratios.engine_section,
    "gains": engine_ratios.gain_section,
    "wall": engine_ratios.wall_section,
    "collectives": collective_ratios.collective_section,
    "start-up": lambda setup: start_up.start_up_section(setup.program, setup.models, 1 if setup.quick else 3),
}
OF_THE_MODEL = ("engine", "gains", "wall", "start-up")


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        fields = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    features = [f for f in ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile") if f in fields["flags"].split()]
    return fields["model name"], f"family {fields['cpu family']}, model {fields['model']}", features


def peer_versions(setup):
    lines = []
    if setup.llama:
        with tempfile.TemporaryFile("w+") as errors:
            code = "import llama_cpp as l; print(l.__version__, '|', l.llama_print_system_info().decode().strip())"
            done = subprocess.run([setup.llama, "-c", code], check=True, text=True, stdout=subprocess.PIPE, stderr=errors)
        version, _, system = done.stdout.partition("|")
        lines.append(f"llama.cpp of llama-cpp-python {version.strip()} ({system.strip()})")
    else:
        lines.append(f"llama.cpp: {NO_LLAMA}")
    mpi = subprocess.run(["mpirun", "--version"], check=False, text=True, stdout=subprocess.PIPE).stdout.splitlines()
    return lines + mpi[:1]


def revision():
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.strip() or "unknown"


def command_of(args):
    """What makes these figures; the page it goes to is no part of them."""
    words = ["python3", "benchmarks/performance.py"]
    for option, value, usual in (("--build", args.build, BUILD), ("--peers", args.peers, PEERS)):
        words += [option, value] if value != usual else []
    for name in args.only or []:
        words += ["--only", name]
    words += ["--quick"] if args.quick else []
    words += ["--rounds", str(args.rounds)] if args.rounds else []
    return shlex.join(words)


def floors(rows, features):
    """The lines that say which floors were reached, missed, and not held here."""
    held = [row for row in rows if row.is_held()]
    missed = [row for row in held if row.misses_floor()]
    lines = [f"**{len(held) - len(missed)} of {len(held)} floors reached.**" + (
        " Missed: " + "; ".join(row.name for row in missed) + "." if missed else ""), ""]
    not_held = [f"{row.name} ({row.not_held})" for row in rows if row.not_held]
    if not_held:
        lines += ["Not measured: " + "; ".join(not_held) + ".", ""]
    if missed and "avx512f" not in features:
        lines += ["This processor has no AVX-512. The floors were set on one that has: what is missed here may be missed "
                  "for want of its instructions, and is missed all the same.", ""]
    return lines


def page(args, setup, sections, load_before):
    name, model, features = processor()
    now = datetime.datetime.now(datetime.timezone.utc)
    rows = [row for section in sections for row in section.rows]
    load = ", ".join(f"{value:.1f}" for value in load_before)
    lines = [
        "# Performance", "",
        f"Written by `{command_of(args)}` on {now:%Y-%m-%d %H:%M} UTC; do not edit. Every figure is a ratio to a peer "
        "that ran in the same minute, in turn; 1.00 is the peer's speed, above is faster.", "",
        f"- machine: {name} ({model}), {os.cpu_count()} cores, {' '.join(features)}; Linux {platform.release()}",
        f"- load average before: {load}; after: {', '.join(f'{value:.1f}' for value in os.getloadavg())}",
        f"- version {revision()}; model: {SHAPE['n_layers']} layers, d_model {SHAPE['d_model']}, d_ff {SHAPE['d_ff']}, "
        f"{SHAPE['n_heads']} heads, {SHAPE['n_kv_heads']} KV heads, vocabulary {SHAPE['vocab_size']}, random weights",
        *(f"- {line}" for line in peer_versions(setup)), "", *floors(rows, features)]
    if args.quick:
        lines += ["Quick run: few rounds.", ""]
    return "\n".join(lines) + "\n" + "\n".join(section.markdown() for section in sections), any(
        row.misses_floor() for row in rows)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=BUILD, help="build folder (build)")
    parser.add_argument("--peers", default=PEERS, help="of peers.sh (build/peers)")
    parser.add_argument("--page", default=PAGE, help="- is standard output")
    parser.add_argument("--only", action="append", choices=sorted(SECTIONS),
                        help="this section; may repeat; needs a --page of its own")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and repeats")
    parser.add_argument("--rounds", type=int, help="alternations of each ratio of whole runs (5, quick 2)")
    args = parser.parse_args()
    if args.only and os.path.realpath(args.page) == os.path.realpath(PAGE):
        parser.error(f"--only would write some sections over the whole of {PAGE}: give --page FILE, or --page - for "
                     "the terminal")
    for name in NOT_IN_FORCE:
        if name in os.environ:
            parser.error(f"{name} is set, and would change what is measured: unset it")
    return args


def main():
    args = parse_arguments()
    setup = Setup(args)
    load_before = os.getloadavg()
    wanted = [name for name in SECTIONS if not args.only or name in args.only]
    if any(name in OF_THE_MODEL for name in wanted):
        setup.make_models()
    sections = []
    for name in wanted:
        print(f"{name} …", file=sys.stderr, flush=True)
        sections.append(SECTIONS[name](setup))
        print(sections[-1].markdown(), file=sys.stderr, flush=True)
    text, missed = page(args, setup, sections, load_before)
    if args.page == "-":
        print(text, end="")
    else:
        with open(args.page, "w", encoding="utf-8") as file:
            file.write(text)
    sys.exit(missed)


if __name__ == "__main__":
    main()
