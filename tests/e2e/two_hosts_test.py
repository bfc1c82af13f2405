"""One job over two hosts of this machine (scripts/two_hosts.sh): messages really cross the link, tokens stay the same, and a
link slower than the profile's is rejected and named."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from program import BIN, FAST, SOURCE, greedy, model, processes_with, read_verdict, strict_json

TWO_HOSTS = os.path.join(SOURCE, "scripts", "two_hosts.sh")
WORK = ("--model", model("llama3_gqa"), "--prompt-ids", "1,2,3", "--gen-tokens", 8)
LIMIT_S = 150


def two_hosts(rate, *command, ranks=1):
    """(exit code, stdout, stderr)"""
    done = subprocess.run(["timeout", str(LIMIT_S), "bash", TWO_HOSTS, rate, str(ranks), *map(str, command)], check=False,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S + 30)
    return done.returncode, done.stdout, done.stderr


def crossed(errors):
    """Bytes that each host sent over the link."""
    return list(map(int, re.search(r"host-a sent (\d+) bytes, host-b (\d+)", errors).groups()))


class Job(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def record(self, rate, ranks, *options):
        path = os.path.join(self.folder, "record.json")
        code, out, err = two_hosts(rate, BIN, *WORK, *FAST, *options, "--json", path, ranks=ranks)
        self.assertEqual(code, 0, f"{out}\n{err}")
        with open(path, encoding="utf-8") as file:
            return strict_json(file.read()), crossed(err)

    def test_two_hosts_of_one_rank_exchange_over_the_link_alone(self):
        found, sent = self.record("1gbit", 1, "--tp", 2)
        self.assertEqual(found["fingerprint"]["hosts"], ["host-a", "host-b"])
        self.assertNotIn("within the host", found["fingerprint"]["environment"])
        self.assertEqual([request["ids"] for request in found["requests"]], greedy(1, *WORK))
        for phase in ("prefill", "decode"):
            collectives = found["phases"][phase]["collectives"]
            self.assertEqual({c["transport"] for c in collectives}, {"tcp"})
            # A step's bytes from each rank; the run had at least these steps.
            least = found["phases"][phase]["steps"] * sum(c["wire_bytes_per_device"] * c["per_step"] for c in collectives)
            self.assertGreater(least, 0)
            for n_bytes in sent:
                self.assertGreater(n_bytes, least, phase)

    def test_two_hosts_of_two_ranks_share_memory_within_and_a_link_between(self):
        found, _ = self.record("1gbit", 2, "--tp", 4)
        self.assertEqual(found["fingerprint"]["hosts"], ["host-a", "host-b"])
        self.assertEqual([d["host"] for d in found["phases"]["decode"]["per_device"]], ["host-a"] * 2 + ["host-b"] * 2)
        self.assertEqual(found["fingerprint"]["environment"]["within the host"], "own shared memory")
        self.assertEqual([request["ids"] for request in found["requests"]], greedy(1, *WORK))
        transports = {c["transport"] for c in found["phases"]["decode"]["collectives"]}
        self.assertEqual(transports, {"mixed"})

    def test_exit_codes_and_arguments_are_passed_on(self):
        self.assertEqual(two_hosts("unshaped", "bash", "-c", "exit 7")[0], 7)
        code, out, _ = two_hosts("unshaped", "bash", "-c", 'echo "$(hostname): $1"', "bash", "two  words; $HOME")
        self.assertEqual((code, sorted(out.splitlines())), (0, ["host-a: two  words; $HOME", "host-b: two  words; $HOME"]))

    def test_mistakes_are_2(self):
        for command in (("2gbit", "true"), ("1gbit",), ("1gbit", "2")):
            done = subprocess.run(["bash", TWO_HOSTS, *command], check=False, capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("two_hosts: ", done.stderr)

    def test_nothing_is_left_however_it_ends(self):
        for sent in (signal.SIGTERM, signal.SIGKILL):
            mark = f"{self.folder}-{sent}"
            process = subprocess.Popen(["bash", TWO_HOSTS, "1gbit", "sleep", "600"], stdin=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, env={**os.environ, "TESTBED_TEST_MARK": mark})
            end = time.monotonic() + 60
            # Script, unshare and its shell, two hosts, mpirun, the other host's daemon, and the two ranks.
            while len(processes_with("TESTBED_TEST_MARK", mark)) < 9:
                self.assertLess(time.monotonic(), end, "the job did not start")
                time.sleep(0.1)
            process.send_signal(sent)
            self.assertNotEqual(process.wait(timeout=30), 0)
            end = time.monotonic() + 10  # the kernel ends them one after the other
            while processes_with("TESTBED_TEST_MARK", mark) and time.monotonic() < end:
                time.sleep(0.05)
            self.assertEqual(processes_with("TESTBED_TEST_MARK", mark), [])


class Acceptance(unittest.TestCase):
    """A link of 10 Gbit/s is what the profile was calibrated on; one of 1 Gbit/s is not that link."""

    MOST_BYTES = 16 << 20  # the largest of --quick: 13 ms at 10 Gbit/s, 134 at 1
    TRIES = 3

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.profile = os.path.join(self.folder, "calibrated.toml")

    def calibrate(self, ranks=1, most_bytes=MOST_BYTES):
        code, out, err = two_hosts("10gbit", BIN, "probe", "--device", "cpu", "--threads", 1, "--max-bytes", most_bytes,
                                   "--acceptance", self.profile, "--stage", "links", "--quiet", ranks=ranks)
        self.assertEqual(code, 0, f"{out}\n{err}")

    def links(self, rate, *cases, ranks=1):
        """(exit code, the verdict, all that was said)"""
        folder = os.path.join(self.folder, rate)
        code, out, err = two_hosts(rate, BIN, "accept", "--device", "cpu", "--threads", 1, "--profile", self.profile, "--stage",
                                   "links", "--quick", "--max-bytes", self.MOST_BYTES, *cases, "--output", folder, "--quiet",
                                   ranks=ranks)
        return code, read_verdict(folder), out + err

    @staticmethod
    def blamed(verdict):
        return [blame for case in verdict["cases"] if case["status"] == "failed" for blame in case["blamed"]]

    def test_the_calibrated_link_passes_and_a_slower_one_is_rejected_and_named(self):
        # Both are measured: if this machine was slowed down between calibration and acceptance, that was not the link.
        for _ in range(self.TRIES):
            self.calibrate()
            fast, slow = self.links("10gbit"), self.links("1gbit")
            if (fast[0], slow[0]) == (0, 1):
                break
        code, found, text = fast
        self.assertEqual((code, found["verdict"]), (0, "accept"), text)
        self.assertGreater(found["coverage"]["gated"], 0)
        code, found, text = slow
        self.assertEqual((code, found["verdict"]), (1, "reject"), text)
        blamed = self.blamed(found)
        self.assertTrue(blamed, text)
        for blame in blamed:
            self.assertEqual((blame["kind"], blame["ranks"]), ("link", [0, 1]), text)


if __name__ == "__main__":
    check = subprocess.run(["bash", TWO_HOSTS, "--check"], check=False, capture_output=True, text=True)
    if check.returncode != 0:
        print(f"SKIPPED: {check.stderr.strip()}")
        sys.exit(77)
    unittest.main(verbosity=2)
