#!/usr/bin/env python3
"""Start-up on the 1 B model: from the start of the program to its first token, over reading the file once and touching the
memory; with the file out of the page cache (cold) and in it (warm). And the most memory a rank holds of its own (RssAnon: not the mapped file)
beside its shard.

  python3 benchmarks/start_up.py PROGRAM FOLDER_OF_bench_model.py
"""
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from bench_shapes import gguf_path, largest_tensor_bytes, safetensors_path
from ratio_page import HEADER, Row, Section, table
from testbed_run import LAUNCHER

FIRST_TOKEN = ["--prompt-tokens", "1", "--gen-tokens", "1", "--warmup", "0", "--repeats", "1", "--check", "off",
               "--device", "cpu", "--quiet"]
# What a process holds before it loads: code's data, MPI's buffers, thread stacks.
PROCESS_BYTES = 64 << 20
LEAST_LLC_BYTES = 32 << 20
HOST_TAKES_BACK_S = 4  # after which a host that wants free pages has them


def drop_from_cache(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_s(path):
    """Reads the file once, as fast as one thread does without looking at it."""
    buffer = bytearray(8 << 20)
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(buffer):
            pass
    return time.perf_counter() - begin


def touch_s(n_bytes):
    """The first touch of so much fresh memory, in huge pages: on virtual machines whose host takes free memory back it
    costs more than reading a file."""
    memory = mmap.mmap(-1, n_bytes)
    memory.madvise(mmap.MADV_HUGEPAGE)
    begin = time.perf_counter()
    view = (ctypes.c_char * n_bytes).from_buffer(memory)
    ctypes.memset(view, 1, n_bytes)
    elapsed_s = time.perf_counter() - begin
    del view
    memory.close()
    time.sleep(HOST_TAKES_BACK_S)
    return elapsed_s


def children_of(pid):
    """All processes below this one, by walking /proc."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                parents.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
        except OSError:
            continue
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def own_bytes(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


class Watch:
    """The largest RssAnon of each rank below a process, looked at every few milliseconds."""

    def __init__(self, process, program):
        self.peaks, self.process, self.program = {}, process, os.path.realpath(program)
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def is_rank(self, pid):
        try:
            return os.path.realpath(f"/proc/{pid}/exe") == self.program
        except OSError:
            return False

    def look(self):
        ranks, listed = [], 0.0
        while self.process.poll() is None:
            if time.monotonic() - listed > 0.2:
                ranks = [pid for pid in children_of(self.process.pid) if self.is_rank(pid)]
                listed = time.monotonic()
            for pid in ranks:
                self.peaks[pid] = max(self.peaks.get(pid, 0), own_bytes(pid))
            time.sleep(0.005)


def start(program, ranks, options):
    """(seconds from start to end, record, largest RssAnon of each rank)."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "record.json")
        command = [LAUNCHER, "600", str(ranks), program, *FIRST_TOKEN, "--tp", str(ranks), *options, "--json", path]
        begin = time.perf_counter()
        process = subprocess.Popen(command)
        watch = Watch(process, program)
        code = process.wait()
        elapsed_s = time.perf_counter() - begin
        watch.thread.join()
        if code != 0:
            raise SystemExit(f"{' '.join(command)}: exit code {code}")
        with open(path, encoding="utf-8") as file:
            return elapsed_s, json.load(file), sorted(watch.peaks.values())


def models(folder):
    safetensors = safetensors_path(folder)
    return {"GGUF bf16": (gguf_path(folder, "bf16"), gguf_path(folder, "bf16")),
            "GGUF Q8_0": (gguf_path(folder, "q8_0"), gguf_path(folder, "q8_0")),
            "safetensors bf16": (safetensors, os.path.join(safetensors, "model.safetensors"))}


def read_buffer_bytes(record):
    """Of a rank's read loop, which runs after loading (launch/cpu_rank.cpp)."""
    ranks = len(record["memory"])
    return max(8 * max(record["peaks"][0]["llc_bytes"], LEAST_LLC_BYTES) // ranks, 4 * LEAST_LLC_BYTES)


def excess(record, peaks):
    """Of the fullest rank: what it held beyond its shard, caches and buffers, in units of the largest tensor."""
    held = [m["weights_bytes"] + m["kv_pool_bytes"] + m["workspace_bytes"] for m in record["memory"]]
    known = max(held) + read_buffer_bytes(record) + PROCESS_BYTES
    return max(peak - known for peak in peaks) / largest_tensor_bytes()


def one_round(program, ranks, model, file):
    """(figure, value) of a cold and a warm start, each beside reading the file and touching the shards' memory."""
    figures = {}
    for cache in ("cold", "warm"):
        if cache == "cold":
            drop_from_cache(file)
        read = read_s(file)
        if cache == "cold":
            drop_from_cache(file)
        elapsed_s, record, peaks = start(program, ranks, ["--model", model])
        time.sleep(HOST_TAKES_BACK_S)
        touch = touch_s(sum(m["weights_bytes"] for m in record["memory"]))
        figures[cache] = elapsed_s, read, touch
        figures["memory"] = excess(record, peaks)
    return figures


def start_row(cache, name, rounds, floor, aim):
    times = [figures[cache] for figures in rounds]
    ratios = [elapsed / (read + touch) for elapsed, read, touch in times]
    elapsed, read, touch = (statistics.median(side) for side in zip(*times))
    return Row(f"{cache} start, {name}, to reading the file and touching the memory", ratios, floor, aim, at_most=True,
               note=f"{elapsed:.1f} s; file {read:.1f} s, memory {touch:.1f} s")


def start_up_section(program, folder, n_rounds):
    rows = []
    for name, (model, file) in models(folder).items():
        for ranks in (1, 2):
            split = f"{name}, " + ("1 rank" if ranks == 1 else f"tp {ranks}")
            rounds = [one_round(program, ranks, model, file) for _ in range(n_rounds)]
            rows += [start_row("cold", split, rounds, 1.5, 1.1), start_row("warm", split, rounds, None, None),
                     Row(f"memory beyond the shard ÷ largest tensor, {split}", [r["memory"] for r in rounds], 1.0,
                         at_most=True)]
    safetensors = models(folder)["safetensors bf16"][0]
    ratios, seconds = [], []
    for _ in range(n_rounds):
        loaded_s, _, _ = start(program, 1, ["--model", safetensors])
        time.sleep(HOST_TAKES_BACK_S)
        seconds.append(start(program, 1, ["--model", safetensors, "--weights", "random"])[0])
        time.sleep(HOST_TAKES_BACK_S)
        ratios.append(seconds[-1] / loaded_s)
    rows.append(Row("random weights to the warm safetensors start, 1 rank", ratios, 1.5, 1.0, at_most=True,
                    note=f"{statistics.median(seconds):.1f} s"))
    return Section("Start-up", rows, "From mpirun to the end after one token, over reading the file once (8 MiB at a time) "
                   "and the first touch of as much memory as the shards take, one thread each. Cold: dropped from the page "
                   "cache by `posix_fadvise`; the host below may still have it. Memory is the rank's own (RssAnon), less "
                   f"the read loop's buffer and {PROCESS_BYTES >> 20} MiB that any process of MPI holds; below 0 "
                   "these were estimated generously.")


if __name__ == "__main__":
    print(table(HEADER, [row.cells() for row in start_up_section(sys.argv[1], sys.argv[2], 1).rows]))
