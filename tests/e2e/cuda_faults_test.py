"""Every call of CUDA, cuBLASLt and NCCL fails once, in the real program on the emulation (tests/cuda_emulation): the job
ends within its deadline, with one line that names rank, call and code, and leaves nothing. Calls are told apart by the way
that the program came to them; by default a few of each name, with TESTBED_TEST_ALL=1 all."""
import glob
import os
import re
import subprocess
import tempfile
import time
import unittest

from program import BIN, MPIRUN, RUN_ALL, model

DEADLINE_S = 5
# Start, the sizes of all-reduces (at most 1 s), and what a loaded machine adds.
START_S = 20
ARGS = ("--model", model("llama3_gqa"), "--device", "cuda", "--prompt-ids", "1,2,3", "--gen-tokens", 4, "--warmup", 0,
        "--repeats", 1, "--quiet", "--timeout", DEADLINE_S)
# What only gives back has nobody to fail: it is said, and the results stand.
RELEASES = ("cudaFree", "cudaFreeHost", "cudaEventDestroy", "cudaStreamDestroy", "cudaGraphDestroy", "cudaGraphExecDestroy",
            "cudaIpcCloseMemHandle", "cublasLtDestroy", "ncclCommFinalize", "ncclCommDestroy")
# Tried while it is found out whether GPUs can map each other: then NCCL does it all, and the record says why.
TRIED = ("cudaDeviceCanAccessPeer", "cudaIpcGetMemHandle", "cudaIpcOpenMemHandle", "cudaDeviceGetPCIBusId",
         "cudaDeviceGetAttribute", "cudaGetDeviceCount", "cudaGetDevice", "cudaHostAlloc", "cudaMalloc", "cudaMemsetAsync",
         "cudaEventRecord", "cudaEventQuery", "cudaMemcpyAsync", "cudaLaunchKernel")


def left_behind():
    """What jobs could leave on the machine: NCCL's logs. Shared memory of emulated devices has no name."""
    return set(glob.glob(os.path.join(tempfile.gettempdir(), "testbed-nccl.*")))


def processes_of(job):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"TESTBED_TEST_JOB={job}".encode() in file.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found


def spread(items, most):
    """At most `most` of them, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[i * (len(items) - 1) // max(1, most - 1)] for i in range(most)]


class Faults(unittest.TestCase):
    ranks = 0
    split = ()
    places = {}

    @classmethod
    def run_program(cls, **env):
        """(exit code, lines of stderr, seconds)."""
        job = f"{os.getpid()}-{time.monotonic_ns()}"
        command = [BIN, *map(str, (*ARGS, *cls.split))]
        if cls.ranks > 1:
            command = [MPIRUN, "60", str(cls.ranks), *command]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, timeout=80, stdin=subprocess.DEVNULL,
                              # hwloc looks for displays, for seconds, unless told not to (scripts/mpi_env.sh).
                              env={**os.environ, "HWLOC_COMPONENTS": "-gl", "TESTBED_TEST_JOB": job, **env})
        took = time.monotonic() - began
        gone_by = time.monotonic() + 3
        while processes_of(job) and time.monotonic() < gone_by:
            time.sleep(0.02)
        assert not processes_of(job), "processes are left"
        return done.returncode, done.stderr.decode(errors="replace").splitlines(), took

    @classmethod
    def setUpClass(cls):
        if cls.ranks == 0:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "counts")
            code, err, _ = cls.run_program(TESTBED_EMULATION_COUNTS=path)
            assert code == 0, err
            with open(f"{path}.{cls.ranks - 1}", encoding="utf-8") as file:
                lines = [line.split() for line in file]
        cls.counts = {name: int(n) for name, n in lines if "/" not in name}
        cls.places = {}
        for name, _ in lines:
            if "/" in name:
                cls.places.setdefault(name.split("/")[0], []).append(name.split("/")[1])

    def fail_at(self, name, place):
        """False if the program did not come there this time."""
        rank = self.ranks - 1
        before = left_behind()
        code, err, took = self.run_program(TESTBED_EMULATION_FAIL=f"{name}:1/{place}@{rank}")
        text = "\n".join(err)
        if not any(line.startswith("emulation: ") for line in err):
            self.assertEqual(code, 0, text)
            return False
        told = [line for line in err if line.startswith("testbed: ")]
        self.assertLess(took, START_S + DEADLINE_S, text)
        self.assertNotRegex(text, r"(?i)signal|terminate called|core dumped|internal error")
        self.assertEqual(left_behind() - before, set())
        if name in RELEASES:
            self.assertEqual(code, 0, text)
            self.assertRegex(told[0], rf"rank {rank} \(.*\): {name}.*\(code \d+", text)
        elif code == 0:
            self.assertIn(name, TRIED if self.ranks > 1 else (), text)
            self.assertEqual(told, [], text)
        else:
            self.assertEqual(code, 3, text)
            self.assertEqual(len(told), 1, text)
            # A kernel fails whichever call waits for it; NCCL's state is of the call that it was at.
            call = r"\w+" if name in ("kernel", "ncclCommGetAsyncError") else name
            self.assertRegex(told[0], rf"^testbed: rank {rank} \(.*\): (.*: )?{call}.*: .*\(code \d+", text)
        return True

    def fail_everywhere(self, names, most):
        n_failed = 0
        for name in names:
            for place in self.places[name] if RUN_ALL else spread(self.places[name], most):
                with self.subTest(call=name, place=place):
                    n_failed += self.fail_at(name, place)
        return n_failed

    def nothing_is_left(self):
        for name, count in self.counts.items():
            if name.startswith("live."):
                self.assertEqual(count, 0, name)
        for makes, ends in (("cublasLtCreate", "cublasLtDestroy"), ("cudaStreamBeginCapture", "cudaStreamEndCapture"),
                            ("cudaStreamEndCapture", "cudaGraphDestroy")):
            self.assertEqual(self.counts[makes], self.counts[ends], makes)
            self.assertGreater(self.counts[makes], 0)


class OneRank(Faults):
    ranks = 1

    def test_a_run_gives_back_all_it_took(self):
        self.nothing_is_left()

    def test_each_call_fails_once(self):
        n_failed = self.fail_everywhere(self.places, most=2)
        self.assertGreater(n_failed, len(self.places) / 2)
        self.assertIn("cublasLtMatmul", self.places)
        self.assertIn("cudaGraphLaunch", self.places)


class TwoRanks(Faults):
    ranks = 2
    split = ("--tp", 2, "--check", "off")
    # Of the other calls, what a second rank makes different: before NCCL, in its waits, in the step.
    also = ("cudaSetDevice", "cudaMalloc", "cudaStreamWaitEvent", "cudaEventRecord", "cudaGraphLaunch", "cudaFree", "kernel")

    def test_a_run_gives_back_all_it_took(self):
        self.nothing_is_left()
        n_comms = self.counts["ncclCommInitRankConfig"] + self.counts["ncclCommSplit"]
        self.assertEqual(self.counts["ncclCommDestroy"], n_comms)

    def test_one_rank_fails_and_no_other_waits_for_it(self):
        of_several = [name for name in self.places if re.match("nccl|cudaIpc|cudaDeviceCanAccessPeer", name)]
        self.assertIn("ncclAllReduce", of_several)
        n_failed = self.fail_everywhere([*of_several, *self.also], most=1)
        self.assertGreater(n_failed, len(of_several))


if __name__ == "__main__":
    unittest.main(verbosity=2)
