"""Runs the real program under mpirun, and reads what it wrote. For the tests of this folder."""
import json
import os
import struct
import subprocess
import tempfile

from check_junit import read_junit
from check_record import strict_loads

BIN = os.environ["TESTBED_BIN"]
MPIRUN = os.environ["TESTBED_MPIRUN"]
SOURCE = os.environ["TESTBED_SOURCE_DIR"]
FIXTURES = os.path.join(SOURCE, "tests", "fixtures")
RUN_ALL = os.environ.get("TESTBED_TEST_ALL") == "1"
LIMIT_S = 100


def model(name):
    return os.path.join(FIXTURES, "models", name)


def run(ranks, *args, env=None, limit_s=LIMIT_S, launcher=True):
    """(exit code, stdout, stderr). ranks ranks under mpirun, or one process without a launcher."""
    command = [BIN, *map(str, args)]
    if launcher:
        command = [MPIRUN, str(limit_s), str(ranks), *command]
    done = subprocess.run(command, capture_output=True, timeout=limit_s + 15, env={**os.environ, **(env or {})},
                          stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def processes_with(name, value):
    """Ids of the processes whose environment has name=value, those of this test left out."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"{name}={value}".encode() in file.read().split(b"\0") and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            continue
    return found


def ranks_of(job):
    """World rank -> pid of the programs that run with TESTBED_TEST_JOB=job."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = dict(e.split(b"=", 1) for e in file.read().split(b"\0") if b"=" in e)
        except OSError:
            continue
        if words[0] == BIN.encode() and environment.get(b"TESTBED_TEST_JOB") == job.encode():
            found[int(environment[b"OMPI_COMM_WORLD_RANK"])] = int(pid)
    return found


def strict_json(text):
    return strict_loads(text.encode())


def read_verdict(folder):
    """verdict.json of an acceptance, None if it wrote none; its junit.xml is valid, and red unless the verdict is accept."""
    path = os.path.join(folder, "verdict.json")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        verdict = strict_json(file.read())
    suites = read_junit(os.path.join(folder, "junit.xml"))
    case, = suites.findall("testsuite[@name='accept.verdict']/testcase")
    is_red = case.find("failure") is not None or case.find("error") is not None
    assert is_red == (verdict["verdict"] != "accept"), f"{case.attrib} of the verdict {verdict['verdict']}"
    return verdict


FAST = ("--warmup", 0, "--repeats", 1, "--quiet")


def record(ranks, *args, env=None):
    """The record of a quick run."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "record.json")
        code, out, err = run(ranks, *args, *FAST, "--json", path, env=env)
        assert code == 0, f"exit code {code}\n{out}\n{err}"
        with open(path, encoding="utf-8") as file:
            return strict_json(file.read())


def greedy(ranks, *args):
    return [request["ids"] for request in record(ranks, *args)["requests"]]


def read_safetensors(path):
    """{name: (shape, flat list)} of the F32 and I32 tensors of a file."""
    with open(path, "rb") as file:
        raw = file.read()
    n, = struct.unpack("<Q", raw[:8])
    tensors = {}
    for name, info in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        code = {"F32": "f", "I32": "i"}[info["dtype"]]
        data = raw[8 + n + begin:8 + n + end]
        tensors[name] = (info["shape"], list(struct.unpack(f"<{len(data) // 4}{code}", data)))
    return tensors


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
