"""Failures of a rank: the job ends within its deadline, names the rank and the cause, and leaves no process."""
import os
import signal
import subprocess
import tempfile
import time
import unittest

from program import BIN, MPIRUN, model, ranks_of, run

DEADLINE_S = 3
LLAMA = model("llama3_gqa")
LONG = ("--prompt-ids", "1,2,3", "--gen-tokens", 200, "--ignore-eos", "--check", "off",
        "--repeats", 100000, "--quiet", "--timeout", DEADLINE_S)


class Failures(unittest.TestCase):
    def disturbed(self, sent, *split, ranks=4, rank=2):
        """Runs a long job, sends `rank` a signal, and gives (exit code, stderr, seconds until the end)."""
        job = f"{os.getpid()}-{time.monotonic_ns()}"
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [MPIRUN, "90", str(ranks), BIN, *map(str, (*split, *LONG))], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=errors, env={**os.environ, "TESTBED_TEST_JOB": job})
            began = time.monotonic()
            while len(ranks_of(job)) < ranks and time.monotonic() - began < 20:
                time.sleep(0.05)
            time.sleep(1.0)  # in the middle of the work
            pid = ranks_of(job)[rank]
            os.kill(pid, sent)
            began = time.monotonic()
            try:
                code = process.wait(timeout=60)
            finally:
                if sent == signal.SIGSTOP:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
            took = time.monotonic() - began
            errors.seek(0)
            text = errors.read().decode(errors="replace")
        time.sleep(0.5)
        self.assertEqual(ranks_of(job), {}, "processes are left")
        return code, text, took

    def test_a_stopped_rank_is_named_within_the_deadline(self):
        for split in (("--model", LLAMA, "--tp", 2, "--pp", 2), ("--model", LLAMA, "--cp", 4),
                      ("--model", model("mixtral"), "--tp", 4, "--ep", 4, "--expert-exchange", "all-to-all")):
            code, text, took = self.disturbed(signal.SIGSTOP, *split)
            self.assertEqual(code, 3, text)
            self.assertRegex(text, r"ranks? 2 \(")
            self.assertIn(f"within {DEADLINE_S} s", text)
            self.assertLess(took, DEADLINE_S + 5)

    def test_a_killed_rank_ends_the_job_at_once(self):
        code, text, took = self.disturbed(signal.SIGKILL, "--model", LLAMA, "--tp", 2, "--pp", 2)
        self.assertNotEqual(code, 0)
        self.assertIn("rank 2", text)
        self.assertLess(took, DEADLINE_S + 5)

    def test_D19_more_threads_than_cores_is_a_warning_and_outputs_stay_clean(self):
        code, out, err = run(2, "--tp", 2, "--threads", 3, "--model", model("llama3_gqa"), "--prompt-ids", "1,2",
                             "--gen-tokens", 2, "--warmup", 0, "--repeats", 1, "--json", "-")
        self.assertEqual(code, 0, err)
        self.assertIn("warning: 3 threads a rank on 1 core", err)
        self.assertTrue(out.startswith("{"))
        self.assertEqual(out.rstrip()[-1], "}")

    def test_a_full_disk_is_an_error(self):
        code, _, err = run(1, "--model", model("llama3_gqa"), "--prompt-ids", "1,2", "--gen-tokens", 2, "--warmup", 0,
                           "--repeats", 1, "--json", "/dev/full")
        self.assertNotEqual(code, 0)
        self.assertIn("/dev/full", err)

    def test_what_does_not_fit_is_refused_before_loading(self):
        with tempfile.TemporaryDirectory():
            code, _, err = run(2, "--tp", 2, "--model", "llama3.1-405b", "--check", "off")
        self.assertEqual(code, 2, err)
        self.assertIn("does not fit", err)
        self.assertIn("the largest is rank 0", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
