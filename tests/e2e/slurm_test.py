"""launch/slurm/testbed.sbatch and srun, under a real Slurm of one node."""
import os
import sys
import tempfile
import time
import unittest

import slurm_cluster
from fake_testbed import fake_testbed, verdict
from program import BIN, FAST, SOURCE, greedy, model, processes_with, strict_json

SBATCH = os.path.join(SOURCE, "launch", "slurm", "testbed.sbatch")
WORK = ("--model", model("llama3_gqa"), "--prompt-ids", "1,2,3", "--gen-tokens", 8)


class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(slurm_cluster.Cluster())

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def job(self, *command, program=BIN, tasks=2):
        return self.cluster.job(f"--ntasks-per-node={tasks}", SBATCH, *command,
                                env={"TESTBED_HOME": SOURCE, "TESTBED_PROGRAM": program})

    def test_a_job_is_one_mpi_job_and_writes_its_record(self):
        path = os.path.join(self.folder, "record.json")
        code, out = self.job("run", *WORK, *FAST, "--tp", 2, "--json", path)
        self.assertEqual(code, 0, out)
        with open(path, encoding="utf-8") as file:
            found = strict_json(file.read())
        self.assertEqual(found["world_size"], 2)
        self.assertEqual(found["requests"][0]["ids"], greedy(1, *WORK)[0])
        self.assertEqual(found["fingerprint"]["environment"]["OMPI_MCA_btl"], "tcp,vader,self")

    def test_a_mistake_s_exit_code_is_the_job_s(self):
        code, out = self.job("run", "--model", "no-such-model", "--tp", 2)
        self.assertEqual(code, 2, out)
        self.assertIn("no-such-model", out)

    def test_an_acceptance_s_exit_code_is_its_verdict_s(self):
        folder = os.path.join(self.folder, "out")
        for name, expected in (("reject", 1), ("corruption", 4)):
            code, out = self.job("accept", "--output", folder, program=fake_testbed(self.folder, verdict(name), code=0))
            self.assertEqual(code, expected, out)
        code, out = self.job("accept", "--output", folder, program=fake_testbed(self.folder, None, code=1))
        self.assertEqual(code, 3, out)  # the verdict in the folder is an older run's
        self.assertIn("no verdict", out)

    def test_a_task_that_fails_ends_the_others(self):
        script = os.path.join(self.folder, "program")
        with open(script, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
            file.write("#!/bin/bash\n[ $SLURM_PROCID = 1 ] && exit 3\nexec sleep 600\n")
        began = time.monotonic()
        code, out = self.job("run", program=script, tasks=3)
        self.assertNotEqual(code, 0, out)  # srun's: of those it ended
        self.assertIn("task 1: Exited with exit code 3", out)
        self.assertLess(time.monotonic() - began, 80)  # not the 600 s of the others
        self.assertEqual(processes_with("TESTBED_PROGRAM", script), [])

    def test_D17_srun_without_pmi_is_refused_in_one_line(self):
        for tasks in (1, 4):
            code, out, err = self.cluster.run("srun", "--mpi=none", f"--ntasks={tasks}", BIN, "run", *WORK)
            self.assertEqual(code, 2, err)
            self.assertEqual(out, "")
            lines = [line for line in err.splitlines() if not line.startswith("srun:")]
            self.assertEqual(len(lines), 1, err)
            self.assertIn("srun --mpi=pmix", lines[0])

    def test_D17_a_single_process_in_an_allocation_for_more_is_refused(self):
        script = os.path.join(self.folder, "job")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/bash\n#SBATCH --ntasks=4\nexec {BIN} run {' '.join(map(str, WORK))}\n")
        code, out = self.cluster.job(script)
        self.assertEqual(code, 2, out)
        self.assertIn("SLURM_NTASKS=4", out)


if __name__ == "__main__":
    reason = slurm_cluster.why_not()
    if reason:
        print(f"SKIPPED: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
