"""`testbed probe`: the curves of this machine, the preset made of them, and a run simulated on it; and the model's
curves of a cluster that is not at hand."""
import os
import tempfile
import unittest

import program

OPS = {"all_reduce", "all_gather", "send_recv"}
MAX_BYTES = 1 << 16


def probe(ranks, *args, launcher=True):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "probe.json")
        code, out, err = program.run(ranks, "probe", *args, "--json", path, launcher=launcher, limit_s=240)
        assert code == 0, f"exit code {code}\n{out}\n{err}"
        with open(path, encoding="utf-8") as file:
            return program.strict_json(file.read()), out


class Measured(unittest.TestCase):
    def test_curves_and_preset(self):
        with tempfile.TemporaryDirectory() as folder:
            preset = os.path.join(folder, "here.toml")
            record, out = probe(2, "--device", "cpu", "--max-bytes", MAX_BYTES, "--toml", preset)
            self.assertNotIn("SIMULATED", out)
            self.check_curves(record)
            simulated = program.record(1, "--device", "sim", "--cluster", preset, "--tp", 2, "--model",
                                       program.model("llama3_gqa"), "--prompt-tokens", 4, "--gen-tokens", 3)
            self.assertTrue(simulated["simulated"])
            self.assertGreater(simulated["timing"]["tpot_ms"], 0)

    def check_curves(self, record):
        self.assertEqual((record["device"], record["simulated"], record["n_ranks"]), ("cpu", False, 2))
        points = record["collectives"]
        self.assertEqual({point["op"] for point in points}, OPS)
        self.assertEqual({point["n"] for point in points}, {2})
        for op in OPS:
            best = [point for point in points if point["op"] == op and point["best"]]
            sizes = [point["bytes"] for point in best]
            self.assertEqual(sizes, [512 << i for i in range(len(sizes))])
            # A slow machine ends a curve early, where a call takes 0.4 s.
            self.assertTrue(sizes[-1] == MAX_BYTES or best[-1]["us"] > 1e5, op)
        both = {point["algorithm"] for point in points if point["op"] == "all_reduce"}
        self.assertEqual(both, {"one-shot", "two-shot"})
        for name in ("collectives", "gemm", "attention", "elementwise"):
            self.assertTrue(all(point["us"] > 0 for point in record[name]), name)
        self.assertGreater(record["memory_read_gb_s"], 0)
        self.assertGreater(record["kernel_overhead_us"], 0)


class Computed(unittest.TestCase):
    def test_model_curves(self):
        record, out = probe(1, "--device", "sim", "--cluster", "dgx-h100", launcher=False)
        self.assertTrue(out.startswith("SIMULATED"), out[:80])
        self.assertTrue(record["simulated"])
        best = {(point["op"], point["n"], point["bytes"]) for point in record["collectives"] if point["best"]}
        self.assertEqual(best, {(op, n, 512 << i) for op in (*OPS, "reduce_scatter", "all_to_all") for n in (2, 4, 8)
                                for i in range(22)})
        self.assertEqual(len(record["gemm"]), 2 * 280)
        self.assertEqual({point["phase"] for point in record["attention"]}, {"decode", "prefill"})


class Refused(unittest.TestCase):
    def test_output_that_cannot_be_written(self):
        code, _, err = program.run(1, "probe", "--device", "cpu", "--toml", "/nowhere/here.toml")
        self.assertEqual(code, 2, err)
        self.assertIn("/nowhere", err)


if __name__ == "__main__":
    unittest.main()
