#!/usr/bin/env python3
"""TP 2 against PP 2 over real links: shared memory, loopback TCP, and two hosts (scripts/two_hosts.sh) on links shaped to
10 Gbit/s down to 10 Mbit/s. Writes docs/layouts.md: medians of alternating runs, where the time of a step went, where PP
overtakes TP, and beside each figure what the simulator predicts.

A prediction is made from one probe of this machine (the device as one rank, what two do to each other in memory, the links
of shared memory) and, for TCP, from two numbers: the time of a small message over the unshaped link or the loopback, and
the rate, which is the shaped one. No run of a model goes into it.

  python3 benchmarks/layouts.py             on a machine that does nothing else, as root: ten minutes
  python3 benchmarks/layouts.py --quick --page -      a small model, one round, to the terminal: whether it works
"""
import argparse
import dataclasses
import datetime
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile

from ratio_page import table
from testbed_run import LAUNCHER, ROOT, record_of

TWO_HOSTS = os.path.join(ROOT, "scripts", "two_hosts.sh")
LIMIT_S = "600"
SPLITS = {"TP 2": ("--tp", "2"), "PP 2": ("--pp", "2")}
PHASES = {"decode": "tpot_ms", "prefill": "ttft_ms"}
ON_THE_WIRE = 1448 / 1514  # TCP payload of an Ethernet frame of 1500 bytes; tbf counts its header of 14, too


@dataclasses.dataclass(frozen=True)
class Layout:
    name: str
    rate: str = ""  # of two hosts
    gbit_s: float = 0.0
    settings: tuple = ()  # of Open MPI
    repeats: int = 3

    def command(self, program):
        """Two ranks on it."""
        if self.rate:
            return ["timeout", "--kill-after=5", LIMIT_S, "bash", TWO_HOSTS, self.rate, program]
        return ["env", *self.settings, LAUNCHER, LIMIT_S, "2", program]


# Fewer repeats where one takes seconds: what waits for the link varies little.
SHAPED = [Layout(name, rate, gbit_s, repeats=repeats) for name, rate, gbit_s, repeats in (
    ("10 Gbit/s", "10gbit", 10.0, 3), ("1 Gbit/s", "1gbit", 1.0, 3), ("100 Mbit/s", "100mbit", 0.1, 2),
    ("10 Mbit/s", "10mbit", 0.01, 1))]
LAYOUTS = [Layout("shared memory"), Layout("loopback TCP", settings=("OMPI_MCA_btl=tcp,self",)), *SHAPED]
UNSHAPED = Layout("unshaped link", "unshaped")

# Its messages are beyond what tbf lets pass at once; the order of TP and PP turns among the rates above.
D_MODEL = 2048
MODEL = """name = "layouts"
family = "llama"
n_layers = {layers}
d_model = {d_model}
n_heads = 32
n_kv_heads = 4
head_dim = 64
d_ff = 5632
vocab_size = 32000
max_positions = 2048
norm_eps = 1e-5
stored_dtype = "bf16"

[rope]
theta = 10000.0
"""


class Setup:
    def __init__(self, args, folder):
        self.program, self.folder, self.quick = args.program, folder, args.quick
        self.rounds = args.rounds or (1 if args.quick else 3)
        self.layers, self.prompt_tokens, self.gen_tokens = (2, 16, 5) if args.quick else (8, 128, 17)
        self.model = os.path.join(folder, "model.toml")
        with open(self.model, "w", encoding="utf-8") as file:
            file.write(MODEL.format(layers=self.layers, d_model=D_MODEL))

    def workload(self):
        return ["--model", self.model, "--prompt-tokens", str(self.prompt_tokens), "--gen-tokens", str(self.gen_tokens),
                "--ignore-eos"]

    def most_probed_bytes(self):
        """Beyond the largest message: a prompt's rows in bf16."""
        return 1 << (2 * D_MODEL * self.prompt_tokens).bit_length()


def measure(setup, layout, split):
    """One thread a rank, so that both splits compute alike."""
    return record_of([*layout.command(setup.program), "--device", "cpu", "--threads", "1", *SPLITS[split],
                      *setup.workload(), "--check", "off", "--warmup", "1", "--repeats", str(layout.repeats),
                      "--timeout", LIMIT_S])


def probe(setup, layout, *options):
    return record_of([*layout.command(setup.program), "probe", "--device", "cpu", "--threads", "1", "--timeout", LIMIT_S,
                      *options])


@dataclasses.dataclass(frozen=True)
class Link:
    """What a prediction knows of a link."""
    latency_us: float
    gb_s: float


def link_of(setup, layout):
    """Of a probe's messages from one rank to the other: the smallest gives the latency, the largest the rate."""
    rows = [row for row in probe(setup, layout, "--max-bytes", str(1 << 20))["collectives"] if row["op"] == "send_recv"]
    small, large = min(rows, key=lambda r: r["bytes"]), max(rows, key=lambda r: r["bytes"])
    return Link(small["us"], 1e-3 * (large["bytes"] - small["bytes"]) / (large["us"] - small["us"]))


class Predictor:
    def __init__(self, setup):
        self.setup = setup
        self.preset = os.path.join(setup.folder, "probed.toml")
        probe(setup, LAYOUTS[0], "--max-bytes", str(setup.most_probed_bytes()), "--toml", self.preset)
        self.loopback, self.unshaped = link_of(setup, LAYOUTS[1]), link_of(setup, UNSHAPED)

    def link(self, layout):
        if not layout.rate:
            return self.loopback
        return Link(self.unshaped.latency_us, min(self.unshaped.gb_s, layout.gbit_s / 8 * ON_THE_WIRE))

    def cluster(self, link):
        """The probed one, with an ideal link of that rate in the place of shared memory."""
        path = os.path.join(self.setup.folder, f"link-{link.gb_s}.toml")
        with open(os.path.join(self.setup.folder, f"ideal-{link.gb_s}.toml"), "w", encoding="utf-8") as file:
            file.write(f'name = "tcp"\ngb_s = {link.gb_s}\n')
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'name = "layout"\ndescription = "probed, over TCP"\nbase = "{self.preset}"\n'
                       f'link = "{file.name.replace("link-", "ideal-")}"\n')
        return ["--cluster", path, "--link-us", str(link.latency_us)]

    def record(self, options, split):
        return record_of([self.setup.program, "--device", "sim", *options, *SPLITS[split], *self.setup.workload()])

    def predict(self, layout, split):
        if layout is LAYOUTS[0]:
            return self.record(["--cluster", self.preset], split)
        return self.record(self.cluster(self.link(layout)), split)

    def gbit_of_crossing(self, phase):
        """The rate at which both splits are predicted to take equally long; None: there is none in the range."""
        def tp_is_slower(gbit_s):
            link = Link(self.unshaped.latency_us, gbit_s / 8 * ON_THE_WIRE)
            tp, pp = (self.record(self.cluster(link), split)["timing"][PHASES[phase]] for split in SPLITS)
            return tp > pp
        low, high = SHAPED[-1].gbit_s, SHAPED[0].gbit_s
        if not tp_is_slower(low) or tp_is_slower(high):
            return None
        for _ in range(7):  # to a twentieth: 1000 ^ (1 / 2 ^ 7)
            middle = math.sqrt(low * high)
            low, high = (middle, high) if tp_is_slower(middle) else (low, middle)
        return math.sqrt(low * high)


def time_ms(record, phase):
    return record["timing"][PHASES[phase]]


def median_ms(records, phase):
    return statistics.median(time_ms(r, phase) for r in records)


def share(records, phase, *names):
    return statistics.median(sum(r["phases"][phase]["shares"][name] for name in names) for r in records)


def bound_by(records, phase):
    """Of the run in the middle, as its record says."""
    return sorted(records, key=lambda r: time_ms(r, phase))[len(records) // 2]["phases"][phase]["bound_by"]


def significant(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def split_cells(records, predicted, phase):
    times = [time_ms(r, phase) for r in records]
    return [f"{significant(statistics.median(times))} ({significant(min(times))} – {significant(max(times))})",
            significant(time_ms(predicted, phase)),
            f"{share(records, phase, 'interconnect'):.0%}", f"{share(records, phase, 'wait', 'bubble'):.0%}",
            bound_by(records, phase)]


def gbit_text(gbit_s):
    return f"{gbit_s:.1f} Gbit/s" if gbit_s >= 1 else f"{1e3 * gbit_s:.0f} Mbit/s"


def measured_crossing(runs, phase):
    """Between the shaped links where TP / PP passes 1, on logarithms of rate and ratio; None: it does not."""
    points = [(math.log(layout.gbit_s), math.log(median_ms(runs[layout, "TP 2"], phase) / median_ms(runs[layout, "PP 2"], phase)))
              for layout in SHAPED]
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if y0 <= 0 < y1:
            return math.exp(x0 + (x1 - x0) * -y0 / (y1 - y0))
    return None


def crossing_text(runs, predictor, phase):
    measured, predicted = measured_crossing(runs, phase), predictor.gbit_of_crossing(phase)
    found = [f"{who} at about {gbit_text(rate)}" if rate else f"{who}: not on these links"
             for who, rate in (("measured", measured), ("predicted", predicted))]
    return f"PP 2 overtakes TP 2 as links get slower: {', '.join(found)}."


def wall_text(runs, phase):
    """Where the largest part of TP's step turns from memory or arithmetic into the interconnect."""
    names = [layout.name for layout in LAYOUTS
             if share(runs[layout, "TP 2"], phase, "interconnect") > share(runs[layout, "TP 2"], phase, "weights", "kv")
             and share(runs[layout, "TP 2"], phase, "interconnect") > share(runs[layout, "TP 2"], phase, "compute")]
    if not names:
        return "Exposed interconnect is nowhere TP 2's wall here."
    return f"The exposed interconnect is more of TP 2's step than memory or arithmetic on: {', '.join(names)}."


def phase_section(runs, predicted, predictor, phase):
    header = ["layout"]
    for split in SPLITS:
        header += [f"{split}, ms", "predicted", "wire", "wait + bubble", "bound by"]
    header.append("faster")
    rows, before = [], "PP 2"
    for layout in LAYOUTS:
        cells = [cell for split in SPLITS for cell in split_cells(runs[layout, split], predicted[layout, split], phase)]
        faster = min(SPLITS, key=lambda split, at=layout: median_ms(runs[at, split], phase))
        rows.append([layout.name, *cells, f"**{faster}** (overtakes)" if (before, faster) == ("TP 2", "PP 2") else faster])
        before = faster
    title = {"decode": "Decode: time per output token", "prefill": "Prefill: time to first token"}[phase]
    return f"## {title}\n\n{table(header, rows)}\n{crossing_text(runs, predictor, phase)} {wall_text(runs, phase)}\n"


def errors_text(runs, predicted):
    ratios = {phase: [time_ms(predicted[key], phase) / median_ms(runs[key], phase) for key in runs] for phase in PHASES}
    worst = {phase: max(ratios[phase], key=lambda r: abs(math.log(r))) for phase in PHASES}
    return "; ".join(f"{phase}: median ratio {statistics.median(ratios[phase]):.2f}, furthest {worst[phase]:.2f}"
                     for phase in PHASES)


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")


def page(setup, runs, predictor, load_before):
    predicted = {key: predictor.predict(*key) for key in runs}
    load = ", ".join(f"{value:.1f}" for value in load_before)
    command = "python3 benchmarks/layouts.py" + "".join(f" {a}" for a in sys.argv[1:])
    lines = [
        "# Layouts: TP against PP over real links", "",
        f"Written by `{command}` on {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC; do not edit. Two ranks "
        f"of one thread and core each; medians (lowest – highest) of {setup.rounds} alternating runs.", "",
        f"- machine: {processor()}, {os.cpu_count()} cores; Linux {platform.release()}; load average before: {load}; after: "
        f"{', '.join(f'{value:.1f}' for value in os.getloadavg())}",
        f"- model: {setup.layers} layers, d_model {D_MODEL}, d_ff 5632, 32 heads, 4 KV heads, vocabulary 32000, random bf16 "
        f"weights; a prompt of {setup.prompt_tokens} tokens, {setup.gen_tokens} generated",
        "- layouts: shared memory is the program's own, loopback is TCP between two processes of one host, the others are two "
        "hosts (network namespaces, each with its own name and /dev/shm) joined by a veth pair shaped both ways by tbf "
        "(`scripts/two_hosts.sh`). tbf limits the rate and adds no latency; after a pause it lets some bytes pass at once (8 kB, at "
        "100 Mbit/s 3 kB, at 10 Mbit/s 1.6 kB), so small messages find these links a little faster than real ones",
        "- wire: exposed interconnect; with wait + bubble the share of device time that is not weights, KV, arithmetic or "
        "overhead ([metrics.md](metrics.md))",
        f"- predicted: simulated on what `testbed probe` measured of this machine before the first run; TCP links are ideal "
        f"ones of {predictor.unshaped.latency_us:.1f} us a message (loopback {predictor.loopback.latency_us:.1f} us, "
        f"{predictor.loopback.gb_s:.2f} GB/s), and of their shaped rate less frame headers", ""]
    if setup.quick:
        lines += ["Quick run: a small model, one round: it shows that this works, and nothing about layouts.", ""]
    sections = [phase_section(runs, predicted, predictor, phase) for phase in PHASES]
    return "\n".join(lines) + "\n" + "\n".join(sections) + (
        f"\n## Predictions\n\nPredicted ÷ measured: {errors_text(runs, predicted)}.\n")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "testbed"))
    parser.add_argument("--page", default=os.path.join(ROOT, "docs", "layouts.md"), help="- is standard output")
    parser.add_argument("--quick", action="store_true", help="a small model, one round")
    parser.add_argument("--rounds", type=int, help="runs of each layout and split, in turn (3, quick 1)")
    return parser.parse_args()


def main():
    args = parse_arguments()
    subprocess.run(["bash", TWO_HOSTS, "--check"], check=True)
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(args, folder)
        print("probing …", file=sys.stderr, flush=True)
        predictor = Predictor(setup)
        runs = {(layout, split): [] for layout in LAYOUTS for split in SPLITS}
        for number in range(setup.rounds):
            for layout, split in runs:
                runs[layout, split].append(measure(setup, layout, split))
                timing = runs[layout, split][-1]["timing"]
                print(f"round {number + 1} of {setup.rounds}: {layout.name}, {split}: TPOT {timing['tpot_ms']:.2f} ms, "
                      f"TTFT {timing['ttft_ms']:.0f} ms", file=sys.stderr, flush=True)
        text = page(setup, runs, predictor, load_before)
    if args.page == "-":
        print(text, end="")
    else:
        with open(args.page, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
