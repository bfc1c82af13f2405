"""launch/testbed-mpirun.sh: where ranks go, what it exits with, and that nothing of a job is left."""
import os
import shlex
import signal
import subprocess
import tempfile
import time
import unittest

from fake_testbed import fake_testbed, verdict
from program import BIN, FAST, SOURCE, greedy, model, processes_with, strict_json

LAUNCH = os.path.join(SOURCE, "launch", "testbed-mpirun.sh")
WORK = ("--model", model("llama3_gqa"), "--prompt-ids", "1,2,3", "--gen-tokens", 4)


def launch(*args, program=BIN, env=None):
    """(exit code, stdout, stderr)"""
    done = subprocess.run(["bash", LAUNCH, "--program", program, *map(str, args)], check=False, capture_output=True, text=True,
                          timeout=120, env={**os.environ, **(env or {})})
    return done.returncode, done.stdout, done.stderr


class Launch(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def planned(self, *options, env=None):
        code, out, err = launch(*options, "--dry-run", "--", "run", env=env)
        self.assertEqual(code, 0, err)
        return shlex.split(out)

    def accept(self, text, code=0, end=None, options=()):
        program = fake_testbed(self.folder, text, code, end)
        return launch(*options, "--", "accept", "--output", os.path.join(self.folder, "out"), program=program)

    def test_runs_one_job_of_as_many_ranks_as_asked(self):
        path = os.path.join(self.folder, "record.json")
        code, _, err = launch("--ranks-per-host", 2, "--", "run", *WORK, *FAST, "--tp", 2, "--json", path)
        self.assertEqual(code, 0, err)
        with open(path, encoding="utf-8") as file:
            found = strict_json(file.read())
        self.assertEqual(found["world_size"], 2)
        self.assertEqual(found["requests"][0]["ids"], greedy(1, *WORK)[0])
        self.assertEqual(found["fingerprint"]["environment"]["OMPI_MCA_btl"], "tcp,vader,self")
        self.assertEqual(found["fingerprint"]["environment"]["OMPI_MCA_pml"], "ob1")

    def test_one_rank_per_device(self):
        command = self.planned("--hosts", "a,b", "--net", "10.1.0.0/16", env={"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"})
        text = " ".join(command)
        self.assertIn("--map-by ppr:8:node --bind-to none", text)  # the program binds each rank near its GPU
        self.assertIn("--host a:8,b:8", text)
        for name in ("btl_tcp_if_include", "oob_tcp_if_include"):
            self.assertIn(f"--mca {name} 10.1.0.0/16", text)
        self.assertIn("--mca btl tcp,vader,self", text)
        self.assertIn("-x CUDA_VISIBLE_DEVICES", text)
        file = os.path.join(self.folder, "hosts")
        with open(file, "w", encoding="utf-8") as out:
            out.write("# nodes\nn1 slots=4\n\nn2\n")
        self.assertIn("--host n1:3,n2:3", " ".join(
            self.planned("--hostfile", file, "--ranks-per-host", 3, "--net", "eth0")))

    def test_processors_are_ranks_by_numa_node(self):
        n_nodes = len([name for name in os.listdir("/sys/devices/system/node") if name[:4] == "node" and name[4:].isdigit()])
        text = " ".join(self.planned(env={"CUDA_VISIBLE_DEVICES": "", "PATH": os.environ["PATH"]}))
        self.assertIn(f"ppr:{n_nodes}:node --bind-to numa", text)

    def test_the_exit_code_of_an_acceptance_is_its_verdict_s(self):
        # What mpirun makes of ranks that end differently says less than the verdict.
        self.assertEqual(self.accept(verdict("corruption"), end="os.kill(os.getpid(), 9)")[0], 4)
        # It stays, and is not the next run's.
        code, _, err = self.accept(None)
        self.assertEqual(code, 3, err)
        self.assertIn("not written in this run", err)
        self.assertEqual(os.listdir(os.path.join(self.folder, "out")), ["verdict.json"])  # and no mark

    def test_mpirun_that_cannot_start_is_3(self):
        missing = os.path.join(self.folder, "not-a-program")
        with open(missing, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o755)) as file:
            file.write("#!/no/such/interpreter\n")
        code, _, err = launch("--", "accept", "--output", os.path.join(self.folder, "out"), program=missing)
        self.assertEqual(code, 3, err)
        self.assertIn("no verdict", err)

    def test_a_rank_that_was_killed_is_not_taken_for_the_limit(self):
        kill = "os.kill(os.getpid(), 9)"
        program = fake_testbed(self.folder, None, end=kill)
        code, _, err = launch("--limit", 300, "--ranks-per-host", 1, "--", "run", program=program)
        self.assertEqual(code, 137, err)
        self.assertNotIn("at the limit", err)

    def test_the_limit_ends_what_does_not_end_itself(self):
        end = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(600)"
        mark = f"{self.folder}-limit"
        os.environ["TESTBED_TEST_MARK"] = mark
        try:
            began = time.monotonic()
            code, _, err = self.accept(verdict("accept", finished=False), end=end, options=("--limit", 3))
        finally:
            del os.environ["TESTBED_TEST_MARK"]
        self.assertEqual(code, 3, err)
        self.assertIn("limit of 3 s", err)
        self.assertLess(time.monotonic() - began, 90)  # not the 600 s
        self.assertEqual(processes_with("TESTBED_TEST_MARK", mark), [])

    def test_a_signal_ends_the_job(self):
        mark = f"{self.folder}-signal"
        program = fake_testbed(self.folder, None, end="import time\ntime.sleep(600)")
        process = subprocess.Popen(["bash", LAUNCH, "--program", program, "--", "run"], env={**os.environ, "TESTBED_TEST_MARK": mark},
                                   stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not set(processes_with("OMPI_COMM_WORLD_RANK", "0")) & set(processes_with("TESTBED_TEST_MARK", mark)):
            self.assertLess(time.monotonic(), end, "the job did not start")
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        self.assertNotEqual(process.wait(timeout=60), 0)
        self.assertEqual(processes_with("TESTBED_TEST_MARK", mark), [])

    def test_mistakes_are_2(self):
        for options in (("--ranks-per-host", "many", "--", "run"), ("--limit", "-1", "--", "run"), ("run",), ("--",),
                        ("--nosuch", "--", "run"), ("--hosts",)):
            code, _, err = launch(*options)
            self.assertEqual(code, 2, err)
            self.assertIn("testbed-mpirun: ", err)


class Verdict(unittest.TestCase):
    """launch/verdict.sh, without a launcher."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def shell(self, script, *args):
        done = subprocess.run(["bash", "-c", f". {SOURCE}/launch/verdict.sh; {script}", "bash", *map(str, args)], check=False,
                              capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def code(self, text, launcher_code):
        """Of a run that wrote `text`, after an accepted one in the same folder."""
        path = os.path.join(self.folder, "verdict.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(verdict("accept"))
        os.utime(path, (1, 1))
        write = '[ -z "$2" ] || printf %s "$2" >"$1/verdict.json"'
        code, _, err = self.shell(f'mark=$(before_acceptance "$1"); sleep 0.02; {write}; verdict_code "$1" "$mark" "$3"',
                                  self.folder, text or "", launcher_code)
        self.assertEqual(os.listdir(self.folder), ["verdict.json"])
        return code, err

    def test_every_verdict_has_its_code(self):
        for launcher_code in (0, 1, 3, 137):  # 3: the limit passed
            for name, expected in (("reject", 1), ("incomplete", 2), ("infrastructure", 3), ("corruption", 4)):
                self.assertEqual(self.code(verdict(name), launcher_code), (expected, ""))
        self.assertEqual(self.code(verdict("accept"), 0), (0, ""))

    def test_without_a_verdict_it_is_3(self):
        for text, launcher_code, says in (
                (None, 0, "not written in this run"), (None, 1, "the launcher returned 1"),
                (verdict("accept", finished=False), 0, "did not end"), ("{", 0, "cannot be read"), ("[]", 0, "cannot be read"),
                (verdict("maybe"), 0, "unknown verdict"), (verdict("accept"), 5, "did not end as it should")):
            code, err = self.code(text, launcher_code)
            self.assertEqual(code, 3, text)
            self.assertIn(says, err)

    def test_the_folder_is_that_of_the_program(self):
        for args, folder in (("accept", "acceptance"), ("accept --quick --output a", "a"), ("accept --output=b/c", "b/c"),
                             ("accept --list", ""), ("accept --explain links/x", ""), ("run --output a", ""),
                             ("accept --help", ""), ("", "")):
            self.assertEqual(self.shell("acceptance_folder \"$@\"", *args.split()), (0, folder, ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
