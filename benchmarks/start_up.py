#!/usr/bin/env python3
"""Start-up on the 1 B model: from the start of the program to its first token, over reading the file once and touching
the memory; with the file out of the page cache (cold) and in it (warm). The bytes that came from the file's device
meanwhile. And the most memory of its own (RssAnon: not the mapped file) that a rank held while it loaded, beside its
shard.

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
READ_LOOP = "read loop"  # the name of a rank that has loaded (launch/cpu_rank.cpp)
LEAST_COLD_SHARE = 0.95  # of a file that a cold start has from its device
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


def text_of(pid, name):
    """Empty: the process has ended."""
    try:
        with open(f"/proc/{pid}/{name}", encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def fields_of(pid, name):
    return dict(line.split(":", 1) for line in text_of(pid, name).splitlines() if ":" in line)


class Watch:
    """Looks at the ranks below a process every few milliseconds: peaks {rank: its largest RssAnon until its read loop,
    which begins when it has loaded}, and read_bytes {rank: what it has had from devices}."""

    def __init__(self, process, program):
        self.peaks, self.read_bytes, self.loaded = {}, {}, set()
        self.process, self.program = process, os.path.realpath(program)
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def is_rank(self, pid):
        try:
            return os.path.realpath(f"/proc/{pid}/exe") == self.program
        except OSError:
            return False

    def rank_of(self, pid):
        settings = dict(entry.split("=", 1) for entry in text_of(pid, "environ").split("\0") if "=" in entry)
        return int(settings.get("OMPI_COMM_WORLD_RANK", -1))

    def look(self):
        ranks, listed = {}, 0.0
        while self.process.poll() is None:
            if time.monotonic() - listed > 0.2:
                ranks = {pid: self.rank_of(pid) for pid in children_of(self.process.pid) if self.is_rank(pid)}
                listed = time.monotonic()
            for pid, rank in ranks.items():
                self.look_at(pid, rank)
            time.sleep(0.005)

    def look_at(self, pid, rank):
        status = fields_of(pid, "status")
        if status.get("Name", "").strip() == READ_LOOP:
            self.loaded.add(rank)
        if rank not in self.loaded and "RssAnon" in status:
            self.peaks[rank] = max(self.peaks.get(rank, 0), int(status["RssAnon"].split()[0]) << 10)
        counters = fields_of(pid, "io")
        if "read_bytes" in counters:
            self.read_bytes[rank] = int(counters["read_bytes"])


class Start:
    """One start of the program to its end: elapsed_s, its record, and what the watch saw."""

    def __init__(self, program, ranks, options):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "record.json")
            command = [LAUNCHER, "600", str(ranks), program, *FIRST_TOKEN, "--tp", str(ranks), *options, "--json", path]
            begin = time.perf_counter()
            process = subprocess.Popen(command)
            self.watch = Watch(process, program)
            code = process.wait()
            self.elapsed_s = time.perf_counter() - begin
            self.watch.thread.join()
            if code != 0:
                raise SystemExit(f"{' '.join(command)}: exit code {code}")
            with open(path, encoding="utf-8") as file:
                self.record = json.load(file)
        if self.watch.loaded != set(range(ranks)):
            raise SystemExit(f"{' '.join(command)}: the watch missed the end of loading: {sorted(self.watch.loaded)}")

    def weights_bytes(self):
        return [memory["weights_bytes"] for memory in self.record["memory"]]

    def excess(self, kind):
        """Of the fullest rank: what it held beyond its shard, in units of the largest tensor as stored."""
        beyond = [self.watch.peaks[memory["rank"]] - memory["weights_bytes"] - PROCESS_BYTES
                  for memory in self.record["memory"]]
        return max(beyond) / largest_tensor_bytes(kind)

    def read_bytes(self):
        return sum(self.watch.read_bytes.values())


class File:
    """A model: its name, what the program opens, the file with the weights, how they are stored."""

    def __init__(self, name, model, path, kind):
        self.name, self.model, self.path, self.kind = name, model, path, kind


def models(folder):
    safetensors = safetensors_path(folder)
    return [File("GGUF bf16", gguf_path(folder, "bf16"), gguf_path(folder, "bf16"), "bf16"),
            File("GGUF Q8_0", gguf_path(folder, "q8_0"), gguf_path(folder, "q8_0"), "q8_0"),
            File("safetensors bf16", safetensors, os.path.join(safetensors, "model.safetensors"), "bf16")]


def one_round(program, ranks, file, number):
    """{figure: values} of a cold and a warm start, each beside reading the file, in turn first, and touching the
    shards' memory."""
    figures = {}
    for cache in ("cold", "warm"):
        def read(cache=cache):
            if cache == "cold":
                drop_from_cache(file.path)
            return read_s(file.path)

        def begin(cache=cache):
            if cache == "cold":
                drop_from_cache(file.path)
            return Start(program, ranks, ["--model", file.model])

        if number % 2 == 0:
            file_s, started = read(), begin()
        else:
            started, file_s = begin(), read()
        time.sleep(HOST_TAKES_BACK_S)
        touch = touch_s(sum(started.weights_bytes()))
        figures[cache] = started.elapsed_s, file_s, touch
        figures[f"{cache} bytes"] = started.read_bytes() / os.path.getsize(file.path)
        figures[f"{cache} memory"] = started.excess(file.kind)
    return figures


def start_row(cache, name, rounds, floor, aim):
    times = [figures[cache] for figures in rounds]
    ratios = [elapsed / (read + touch) for elapsed, read, touch in times]
    elapsed, read, touch = (statistics.median(side) for side in zip(*times))
    return Row(f"{cache} start, {name}, to reading the file and touching the memory", ratios, floor, aim, at_most=True,
               note=f"{elapsed:.1f} s; file {read:.1f} s, memory {touch:.1f} s")


def rows_of_file(program, file, ranks, n_rounds):
    split = f"{file.name}, " + ("1 rank" if ranks == 1 else f"tp {ranks}")
    read_s(file.path)  # untimed: what the host below keeps of it, it then keeps for all
    rounds = [one_round(program, ranks, file, number) for number in range(n_rounds)]
    cold_bytes, warm_bytes = ([figures[f"{cache} bytes"] for figures in rounds] for cache in ("cold", "warm"))
    still_cached = "the file was not out of the page cache" if min(cold_bytes) < LEAST_COLD_SHARE else ""
    return [
        start_row("cold", split, rounds, 1.5, 1.1), start_row("warm", split, rounds, None, None),
        Row(f"bytes read from the device ÷ file, cold start, {split}", cold_bytes, 1.05, 1.0, at_most=True,
            fault=still_cached, note="all ranks together"),
        Row(f"bytes read from the device ÷ file, warm start, {split}", warm_bytes, 0.05, at_most=True,
            note="all ranks together"),
        Row(f"memory beyond the shard ÷ largest tensor, {split}",
            [figures[f"{cache} memory"] for figures in rounds for cache in ("cold", "warm")], 1.0, at_most=True,
            note=f"while loading; a tensor of {largest_tensor_bytes(file.kind) >> 20} MiB as stored")]


def random_weights_row(program, model, n_rounds):
    ratios, seconds = [], []
    for number in range(n_rounds):
        elapsed = {}
        for options in ([], ["--weights", "random"])[::1 if number % 2 == 0 else -1]:
            elapsed["random" if options else "loaded"] = Start(program, 1, ["--model", model, *options]).elapsed_s
            time.sleep(HOST_TAKES_BACK_S)
        seconds.append(elapsed["random"])
        ratios.append(elapsed["random"] / elapsed["loaded"])
    return Row("random weights to the warm safetensors start, 1 rank", ratios, 1.5, 1.0, at_most=True,
               note=f"{statistics.median(seconds):.1f} s")


def start_up_section(program, folder, n_rounds):
    files = models(folder)
    rows = [row for file in files for ranks in (1, 2) for row in rows_of_file(program, file, ranks, n_rounds)]
    rows.append(random_weights_row(program, files[-1].model, n_rounds))
    return Section(
        "Start-up", rows,
        "From mpirun to the end after one token, over reading the file once (8 MiB at a time) and the first touch of as "
        "much memory as the shards take, one thread each; the file is read before the start and after it in turn, and "
        "once before all. Cold: dropped from the page cache by `posix_fadvise`; the host below may still have it. Bytes "
        "from the device are the ranks' `read_bytes` of /proc. Memory is the rank's own (RssAnon, looked at every 5 ms) "
        "until its read loop, which begins when it has loaded, less its weights and "
        f"{PROCESS_BYTES >> 20} MiB that any process of MPI holds.")


if __name__ == "__main__":
    print(table(HEADER, [row.cells() for row in start_up_section(sys.argv[1], sys.argv[2], 1).rows]))
