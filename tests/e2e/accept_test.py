"""testbed accept as a whole: its verdict, its files and its exit codes. What its stages find is tested where they are."""
import json
import os
import tempfile
import unittest

from check_junit import read_junit
from program import model, read_verdict, run

WHOLE = ("--quiet", "--max-bytes", 65536, "--repeats", 1)
QUICK = ("--quick", *WHOLE)
FILES = {"verdict.json", "junit.xml", "summary.txt", "metrics.prom"}

# A profile of processors that expects what the test says of reading memory.
PROFILE = """name = "test"
device = "cpu"
description = "of a test"
tried_on_hardware = true
[[expect]]
figure = "device.read_gb_s"
expected = {read_gb_s}
tolerance = 0.5
source = "this test"
"""


class Accept(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.output = os.path.join(folder.name, "new", "acceptance")

    def accept(self, ranks, *args, effort=QUICK, env=None, launcher=True):
        """(exit code, verdict.json or None, what was printed)"""
        code, out, err = run(ranks, "accept", "--output", self.output, *effort, *args, env=env, launcher=launcher)
        return code, read_verdict(self.output), out + err

    def red_tests(self, stage):
        """Names of the testcases of a stage in junit.xml that have a failure or error."""
        root = read_junit(os.path.join(self.output, "junit.xml"))
        return [test.get("name") for test in root.findall(f"testsuite[@name='accept.{stage}']/testcase")
                if test.find("failure") is not None or test.find("error") is not None]

    def profile(self, read_gb_s):
        path = os.path.join(self.folder, "profile.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(PROFILE.format(read_gb_s=read_gb_s))
        return path


class Verdicts(Accept):
    def test_all_files_are_there_and_the_exit_code_is_the_verdict(self):
        code, verdict, text = self.accept(2, "--stage", "preflight,device")
        self.assertIsNotNone(verdict, text)
        self.assertEqual(set(os.listdir(self.output)), FILES)
        self.assertEqual(code, verdict["exit_code"], text)
        self.assertTrue(verdict["finished"])
        self.assertEqual(verdict["world_size"], 2)
        # A host compared with itself and devices without a cohort: whatever the machine does, that holds.
        self.assertEqual((code, verdict["verdict"], verdict["reasons"]), (0, "accept", []), text)
        self.assertEqual({case["status"] for case in verdict["cases"]}, {"passed"})
        self.assertTrue(any("not the whole acceptance" in label for label in verdict["labels"]))

    def test_one_process_without_a_launcher_is_a_world_of_one(self):
        code, verdict, text = self.accept(1, "--stage", "device", launcher=False)
        self.assertEqual((code, verdict["world_size"]), (0, 1), text)

    def test_D17_a_singleton_under_a_launcher_is_refused(self):
        code, verdict, text = self.accept(1, launcher=False, env={"SLURM_NTASKS": "4", "SLURM_PROCID": "0"})
        self.assertEqual((code, verdict), (2, None), text)
        self.assertIn("4", text)

    def test_what_misses_a_gate_is_rejected_after_three_attempts(self):
        code, verdict, text = self.accept(2, "--case", "device/read", "--profile", self.profile(1e6))
        self.assertEqual((code, verdict["verdict"]), (1, "reject"), text)
        case, = verdict["cases"]
        self.assertEqual((case["status"], case["attempts"]), ("failed", 3))
        self.assertIn("device.read_gb_s", case["reason"])

    def test_what_meets_its_gates_is_accepted(self):
        code, verdict, text = self.accept(2, "--case", "device/read", "--profile", self.profile(1e-3))
        self.assertEqual((code, verdict["verdict"]), (0, "accept"), text)
        self.assertEqual(verdict["coverage"]["gated"], 2)

    def test_a_wrong_value_is_corruption_at_the_first_attempt(self):
        code, verdict, text = self.accept(2, "--case", "collectives/all_reduce", "--inject", "flip:rank=1,at=3")
        self.assertEqual((code, verdict["verdict"]), (4, "corruption"), text)
        case, = verdict["cases"]
        self.assertTrue(case["corrupt"])
        self.assertEqual(case["attempts"], 1)
        self.assertTrue(any("injected" in label for label in verdict["labels"]))
        self.assertTrue(any("rank " in name for name in self.red_tests("collectives")), self.red_tests("collectives"))

    def test_a_case_that_cannot_be_carried_out_is_infrastructure(self):
        code, verdict, text = self.accept(2, "--stage", "preflight,links", "--inject", "drop-link:rank=0,peer=1",
                                          "--timeout", 8)
        self.assertEqual((code, verdict["verdict"]), (3, "infrastructure"), text)
        self.assertTrue(verdict["finished"])
        before = [case for case in verdict["cases"] if case["stage"] == "preflight"]
        self.assertEqual({case["status"] for case in before}, {"passed"})  # what was measured until then is there
        self.assertEqual(verdict["cases"][-1]["status"], "error")
        blamed, = verdict["cases"][-1]["blamed"]
        self.assertEqual((blamed["kind"], blamed["ranks"]), ("link", [0, 1]))
        case, link = self.red_tests("links")
        self.assertEqual(case, "links: latency 8 B")
        self.assertRegex(link, r"^links: rank 0 \(.*\) - rank 1 \(.*\), latency 8 B$")

    def test_what_the_profile_expects_nothing_of_is_said(self):
        label = "expects nothing of, and no gate judges: "
        _, verdict, text = self.accept(2, "--stage", "device")
        self.assertIn(f"the profile cpu-host {label}device", verdict["labels"], text)
        _, verdict, text = self.accept(2, "--stage", "device", "--profile", self.profile(1e-3))
        self.assertIn(f"the profile test {label}device.gemm_tflop_s", verdict["labels"], text)


class Incomplete(Accept):
    def test_D34_no_case_is_no_pass(self):
        code, verdict, text = self.accept(2, "--case", "there is no such case")
        self.assertEqual((code, verdict["verdict"], verdict["cases"]), (2, "incomplete", []), text)

    def test_D34_a_size_that_was_asked_for_and_not_run_is_no_pass(self):
        code, verdict, text = self.accept(2, "--case", "links/bandwidth 16 MiB")
        self.assertEqual((code, verdict["verdict"]), (2, "incomplete"), text)
        self.assertIn("16 MiB", verdict["reasons"][0] + verdict["reasons"][-1])

    def test_mistakes_leave_no_verdict(self):
        for args in (("--profile", "h100-nvlink", "--device", "cpu"), ("--device", "sim"),
                     ("--layout", "nvlink", "--device", "cpu"), ("--profile", "no-such-profile"), ("--baseline", os.path.join(self.folder, "none.json")),
                     ("--inject", "flip:rank=7,at=1")):
            with self.subTest(args=args):
                code, verdict, text = self.accept(2, *args)
                self.assertEqual((code, verdict), (2, None), text)

    def test_a_folder_that_cannot_be_written_to_is_a_mistake(self):
        with open(os.path.join(self.folder, "new"), "w", encoding="utf-8"):
            pass  # a file where the folder is to be
        code, _, text = self.accept(1, "--stage", "device")
        self.assertEqual(code, 2, text)


class Plans(Accept):
    def test_list_says_what_would_run_and_runs_nothing(self):
        code, verdict, text = self.accept(2, "--list")
        self.assertEqual((code, verdict), (0, None), text)
        for stage in ("preflight", "device", "links", "collectives", "model", "corruption", "soak"):
            self.assertIn(f"{stage}/", text)
        code, _, text = self.accept(2, "--list", "--case", "there is no such case")
        self.assertEqual(code, 2, text)

    def test_explain_says_what_a_case_does(self):
        code, verdict, text = self.accept(2, "--explain", "device/read")
        self.assertEqual((code, verdict), (0, None), text)
        self.assertIn("memory", text)
        code, _, text = self.accept(2, "--explain", "device/")
        self.assertEqual(code, 2, text)
        self.assertIn("which of", text)


class Baselines(Accept):
    def test_drift_is_told_against_an_earlier_verdict(self):
        repeated = (*QUICK[:-1], 3)  # one sample has no spread
        _, first, text = self.accept(2, "--case", "device/read", effort=repeated)
        self.assertEqual(first["drift"], [], text)
        # A hundred times what it was, which no busy machine makes up for.
        for case in first["cases"]:
            for figure in case["figures"]:
                figure["samples"] = [100.0 * sample for sample in figure["samples"]]
        path = os.path.join(self.folder, "before.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(first, file)
        _, second, text = self.accept(2, "--case", "device/read", "--baseline", path, effort=repeated)
        self.assertEqual(len(second["drift"]), 2, text)
        for drift in second["drift"]:
            self.assertTrue(drift["beyond_spread"])
            self.assertLess(drift["change"], -0.9)


class Probe(Accept):
    def test_a_probed_profile_holds_the_host_and_expects_every_figure(self):
        path = os.path.join(self.folder, "host.toml")
        of_model = ("--model", model("mixtral"))  # which can be split in every way
        code, out, err = run(2, "probe", "--acceptance", path, "--max-bytes", 65536, "--device", "cpu", "--quiet", *of_model,
                             limit_s=200)
        self.assertEqual(code, 0, out + err)
        code, verdict, text = self.accept(2, "--case", "device/read", "--profile", path)
        self.assertEqual(verdict["coverage"]["gated"], 2, text)
        code, verdict, text = self.accept(2, "--case", "model/mixtral tp 2", "--profile", path, *of_model, effort=WHOLE)
        gated = {figure["key"]["figure"] for case in verdict["cases"] for figure in case["figures"] if figure["gate"]}
        self.assertEqual(gated, {"model.ttft_ms", "model.tpot_ms", "model.goodput_per_s", "model.weight_read_gb_s",
                                 "model.exposed_comm_ms"}, text)
        with open(path, encoding="utf-8") as file:
            profile = file.read()
        for figure in ("device.gemm_tflop_s", "link.one_way_us", "link.both_ways_gb_s", "collective.us"):
            self.assertIn(figure, profile)


if __name__ == "__main__":
    unittest.main()
