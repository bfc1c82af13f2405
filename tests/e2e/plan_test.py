"""`testbed plan`: its costs are those that a run of the same configuration records, and it refuses what cannot be."""
import os
import tempfile
import unittest

from program import SOURCE, model, record, run, strict_json

PROMPT = 24
COUNTED = ("flops", "model_flops", "weight_bytes", "kv_bytes", "kv_write_bytes")


def plan(*args):
    """The plan's JSON."""
    code, out, err = run(1, "plan", *args, "--json", "-", launcher=False)
    assert code == 0, err
    return strict_json(out)


class Plan(unittest.TestCase):
    def test_costs_are_those_of_a_run(self):
        """Per step, all devices, exactly. The plan knows no microbatches: each would read the weights again."""
        bf16 = ("bf16",)
        for name, tp, pp, dtype in (("llama3_gqa", 1, 1, bf16), ("llama3_gqa", 2, 1, ("int8",)),
                                    ("smollm_tied", 3, 1, bf16), ("qwen2", 1, 2, bf16), ("qwen3", 2, 1, bf16),
                                    ("mistral_swa", 1, 1, bf16), ("llama_5layers", 1, 2, ("fp8", "--weight-group", "block"))):
            dtype = ("--weight-dtype", *dtype)
            split = ("--tp", tp, "--pp", pp)
            # One decode step, whose token is the prompt's successor and sees itself too.
            workload = ("--prompt-tokens", PROMPT, "--batch", 1)
            measured = record(tp * pp, "--model", model(name), *split, *workload, "--gen-tokens", 2, "--ignore-eos",
                              "--check", "off", *dtype, "--microbatches", 1)
            planned = plan("--model", model(name), *split, *workload, "--context", PROMPT + 1, *dtype)
            for phase in ("decode", "prefill"):
                with self.subTest(model=name, tp=tp, pp=pp, dtype=dtype, phase=phase):
                    self.assertEqual(measured["phases"][phase]["steps"], 1)
                    per_step = {field: measured["phases"][phase][field] for field in COUNTED
                                if field in measured["phases"][phase]}
                    self.assertIn("weight_bytes", per_step)
                    self.assertEqual({field: planned[phase]["all_devices"][field] for field in per_step}, per_step)

    def test_says_that_nothing_ran(self):
        planned = plan("--model", "llama3-70b", "--tp", 8)
        self.assertIs(planned["closed_form"], True)
        self.assertIs(planned["simulated"], False)
        code, out, err = run(1, "plan", "--model", "llama3-70b", "--tp", 8, launcher=False)
        self.assertEqual(code, 0, err)
        self.assertIn("closed forms", out)
        self.assertLessEqual(max(len(line) for line in out.splitlines()), 100)

    def test_writes_the_committed_claims(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "claims.md")
            code, _, err = run(1, "plan", "--claims", path, launcher=False)
            self.assertEqual(code, 0, err)
            with open(path, encoding="utf-8") as new, \
                    open(os.path.join(SOURCE, "docs", "claims.md"), encoding="utf-8") as committed:
                self.assertEqual(new.read(), committed.read())

    def test_refuses_illegal_splits(self):
        for args, says in ((("--tp", 3), "legal for llama3-70b"), (("--tp", 16), "dgx-h100 has 8")):
            code, _, err = run(1, "plan", "--model", "llama3-70b", *args, launcher=False)
            self.assertEqual(code, 2)
            self.assertIn(says, err)
            self.assertEqual(len(err.strip().splitlines()), 1, err)


if __name__ == "__main__":
    unittest.main()
