"""Wrong values: an acceptance finds them where they are, says whose they are, and finds none where there are none."""
import os
import tempfile
import unittest
import xml.etree.ElementTree as ET

from program import model, read_verdict, run

MODEL = model("llama3_gqa")
QUICK = ("accept", "--device", "cpu", "--quick", "--repeats", 1, "--max-bytes", 4096, "--model", MODEL)


class AcceptCorruption(unittest.TestCase):
    def accept(self, ranks, *args):
        """(exit code, verdict, failures of the JUnit file by test case) of an acceptance."""
        with tempfile.TemporaryDirectory() as folder:
            code, out, err = run(ranks, *QUICK, *args, "--output", folder)
            self.assertTrue(os.path.exists(os.path.join(folder, "verdict.json")), out + err)
            verdict = read_verdict(folder)
            failures = {case.get("name"): " ".join([failure.get("message", ""), failure.text or ""])
                        for case in ET.parse(os.path.join(folder, "junit.xml")).iter("testcase")
                        for failure in case.iter("failure")}
            return code, verdict, failures

    def only_failure(self, verdict):
        failed = [case for case in verdict["cases"] if case["status"] != "passed"]
        self.assertEqual(len(failed), 1, failed)
        return failed[0]

    def test_D30_a_flipped_value_of_a_reduction_is_named(self):
        code, verdict, failures = self.accept(2, "--stage", "collectives", "--inject", "flip:rank=1,at=30")
        self.assertEqual(code, 4)
        self.assertEqual(verdict["verdict"], "corruption")
        case = self.only_failure(verdict)
        self.assertEqual(case["name"], "all_reduce 2 ranks")
        self.assertTrue(case["corrupt"])
        place = r"all_reduce of \d+ bytes over ranks \{0,1\}: rank 1, offset \d+: .* \(1 of \d+ elements"
        self.assertRegex(case["reason"], place)
        self.assertEqual([(blame["kind"], blame["ranks"]) for blame in case["blamed"]], [("rank", [1])])
        self.assertRegex(failures["collectives: all_reduce 2 ranks"], place)

    def test_a_flip_in_a_generation_is_traced_to_rank_layer_and_all_reduce(self):
        # A generation of 4 steps reduces the embedding, then attention and MLP of each of 2 layers.
        for at, collective in ((1, "the embedding"), (3, "the MLP of layer 0"), (24, "attention of layer 1")):
            with self.subTest(at=at):
                code, verdict, failures = self.accept(2, "--stage", "corruption", "--case", "tp 2", "--layers", 2,
                                                      "--inject", f"flip:rank=1,at={at}")
                self.assertEqual(code, 4)
                case = self.only_failure(verdict)
                self.assertTrue(case["corrupt"])
                self.assertIn(f"rank 1: the all-reduce of {collective} gave it wrong values", case["reason"])
                self.assertEqual([blame["ranks"] for blame in case["blamed"]], [[1]])
                self.assertIn(collective, failures["corruption: " + case["name"]])

    def test_nothing_is_found_without_a_fault(self):
        for seed in range(3):
            with self.subTest(seed=seed):
                code, verdict, failures = self.accept(4, "--stage", "collectives,corruption", "--seed", seed,
                                                      "--layers", 2)
                self.assertEqual(code, 0, verdict["reasons"])
                self.assertEqual([case["blamed"] for case in verdict["cases"] if case["blamed"]], [])
                self.assertEqual(failures, {})

    def test_a_rank_that_comes_late_is_blamed_and_no_value_of_it(self):
        code, verdict, _ = self.accept(2, "--stage", "collectives", "--case", "all_reduce", "--inject",
                                       "delay:rank=1,us=100000")
        self.assertEqual(code, 1)
        case = self.only_failure(verdict)
        self.assertFalse(case["corrupt"])
        self.assertRegex(case["reason"], r"rank 1 comes \d+ us late to 16 of 16 calls of all_reduce")
        self.assertEqual([(blame["kind"], blame["ranks"]) for blame in case["blamed"]], [("rank", [1])])
        # The others' waiting is not the link's time.
        times = [figure["median"] for figure in case["figures"] if figure["key"]["figure"] == "collective.us"]
        self.assertTrue(times)
        self.assertLess(min(times), 50000)


if __name__ == "__main__":
    unittest.main()
