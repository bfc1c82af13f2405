"""testbed accept on GPUs, on the emulation (tests/cuda_emulation): its groups, its facts and its faults."""
import os
import tempfile
import unittest

from program import read_verdict, run

# Next to nothing: what the emulation's times are is of no interest.
PROFILE = """name = "emulated"
device = "cuda"
[[expect]]
figure = "device.read_gb_s"
expected = 1e-6
tolerance = 0.9
source = "this test"
"""


class AcceptCuda(unittest.TestCase):
    def accept(self, *args):
        with tempfile.TemporaryDirectory() as folder:
            profile = os.path.join(folder, "profile.toml")
            with open(profile, "w", encoding="utf-8") as file:
                file.write(PROFILE)
            code, out, err = run(2, "accept", "--device", "cuda", "--profile", profile, "--quick", "--quiet", "--repeats", 1,
                                 "--max-bytes", 4096, "--output", folder, *args)
            return code, read_verdict(folder), out + err

    def test_hosts_of_GPUs_are_accepted_and_the_profile_is_said_to_be_untried(self):
        code, verdict, text = self.accept("--stage", "preflight")
        self.assertEqual((code, verdict["verdict"], verdict["device"]), (0, "accept", "cuda"), text)
        self.assertTrue(any("never tried" in label for label in verdict["labels"]))

    def test_values_of_collectives_are_checked(self):
        code, verdict, text = self.accept("--case", "collectives/all_gather")
        self.assertEqual((code, verdict["verdict"]), (0, "accept"), text)
        code, verdict, text = self.accept("--case", "collectives/all_reduce", "--inject", "flip:rank=1,at=3")
        self.assertEqual((code, verdict["verdict"]), (4, "corruption"), text)

    def test_ranks_that_a_fault_does_not_concern_decode_as_the_one_that_it_does(self):
        """Eagerly: had some captured their decode steps, they would have waited for the others to do so."""
        model = os.path.join(os.environ["TESTBED_SOURCE_DIR"], "tests", "fixtures", "models", "llama3_gqa")
        code, verdict, text = self.accept("--case", "model/llama3_gqa tp 2", "--model", model, "--inject", "delay:rank=1,us=100")
        self.assertNotEqual(code, 3, text)
        self.assertTrue(verdict["cases"])
        for case in verdict["cases"]:
            self.assertIn(case["status"], ("passed", "flaky", "failed"), case)
            self.assertTrue(case["figures"], case)

    def test_a_profile_of_processors_is_refused(self):
        code, _, err = run(2, "accept", "--device", "cuda", "--profile", "cpu-host")
        self.assertEqual(code, 2, err)
        self.assertIn("is for --device cpu", err)


if __name__ == "__main__":
    unittest.main()
