"""Runs of the program for the benchmarks here: its record, and ratios of alternating runs with their spread."""
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAUNCHER = os.path.join(ROOT, "scripts", "mpirun.sh")


def program():
    return sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "testbed")


def record_of(command):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "record.json")
        subprocess.run([*command, "--quiet", "--json", path], check=True)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def launched(ranks, options, limit_s=600):
    """On CPU ranks with the program's own choice of threads, unchecked."""
    return record_of([LAUNCHER, str(limit_s), str(ranks), program(), "--device", "cpu", "--check", "off", *options])


def measured(ranks, options, limit_s=600):
    """One thread a rank, so that all splits compute alike."""
    return launched(ranks, ("--threads", "1", *options), limit_s)


def simulated(cluster, options):
    return record_of([program(), "--device", "sim", "--cluster", cluster, *options])


def median_and_spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def print_load():
    """Other processes take cores from the ranks: figures are of a quiet machine only if this is below 1."""
    print(f"load average at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
