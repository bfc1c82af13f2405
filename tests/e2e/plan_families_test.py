"""`testbed plan` against a simulated run of every family: each device op costs what the plan's closed form says, under tp, cp,
pp and ep. A simulated run draws the experts; a plan has their expected number."""
import unittest

from plan_test import plan
from program import model, record, run

PROMPT = 250  # tokens, no whole blocks; enough that every expert of the small models is touched on every cp rank
FAMILIES = ("qwen3", "gemma2", "gemma3", "gemma4_dense", "gemma4_moe", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss")
# Splits in which every rank's experts see all of its tokens: no draw matters.
SPLIT = (("gemma2", "--tp", 2, "--pp", 2), ("gemma4_dense", "--tp", 2, "--pp", 2), ("gemma4_dense", "--cp", 2), ("gemma3", "--cp", 2),
         ("llama3_gqa", "--tp", 2, "--cp", 2), ("deepseek_v3", "--cp", 2, "--pp", 2), ("deepseek_v2", "--tp", 2), ("gpt_oss", "--cp", 4),
         ("mixtral", "--tp", 2))
# With whole experts on ranks the rows of a rank are as they are drawn; their sum is not. (model, split, rows are copied over cp)
EXPERT_SPLIT = (("gemma4_moe", False, "--tp", 2, "--ep", 2), ("deepseek_v3", False, "--tp", 2, "--ep", 2),
                ("gpt_oss", False, "--tp", 2, "--cp", 2, "--ep", 2), ("mixtral", False, "--tp", 4, "--ep", 2),
                ("qwen3_moe", True, "--tp", 2, "--cp", 2, "--ep", 4), ("deepseek_v2", True, "--cp", 4, "--ep", 4))
BYTES = ("weight_bytes", "kv_bytes", "kv_write_bytes")


def phases(name, split, batch=1, prompt=PROMPT):
    """{phase: (planned, recorded)} of one step each, all devices."""
    workload = ("--prompt-tokens", prompt, "--batch", batch)
    planned = plan("--model", model(name), *split, *workload, "--context", prompt + 1, "--weight-dtype", "bf16")
    measured = record(1, "--device", "sim", "--cluster", "dgx-h100", "--model", model(name), *split, *workload,
                      "--gen-tokens", 2, "--weight-dtype", "bf16", "--microbatches", 1)["phases"]
    assert measured["prefill"]["steps"] == measured["decode"]["steps"] == 1
    return {phase: (planned[phase]["all_devices"], measured[phase]) for phase in ("prefill", "decode")}


class PlanFamilies(unittest.TestCase):
    def assert_equal(self, fields, planned, recorded):
        self.assertEqual({field: planned[field] for field in fields}, {field: recorded[field] for field in fields})

    def test_costs_are_those_of_a_run(self):
        for name, *split in [(family,) for family in FAMILIES] + list(SPLIT):
            for phase, (planned, recorded) in phases(name, split).items():
                with self.subTest(model=name, split=split, phase=phase):
                    self.assert_equal(("flops", "model_flops", *BYTES), planned, recorded)

    def test_batches_around_the_ring(self):
        """The requests' first ranks rotate and their blocks travel in one message; of short prompts some ranks have no rows."""
        for name, batch, prompt, *split in (("llama_5layers", 4, 80, "--cp", 4), ("llama_5layers", 3, 100, "--cp", 8),
                                            ("gemma3", 4, PROMPT, "--cp", 4), ("deepseek_v2", 3, 40, "--cp", 4),
                                            ("gpt_oss", 4, 20, "--cp", 4)):
            # How many experts so few tokens touch is drawn, and with it the weights' bytes.
            drawn = ("weight_bytes",) if name in ("deepseek_v2", "gpt_oss") else ()
            fields = [field for field in ("flops", "model_flops", *BYTES) if field not in drawn]
            for phase, (planned, recorded) in phases(name, split, batch, prompt).items():
                with self.subTest(model=name, split=split, batch=batch, phase=phase):
                    self.assert_equal(fields, planned, recorded)

    def test_prompt_of_one_token(self):
        """MLA's projections are absorbed, unless its rows are split over cp."""
        for split in ((), ("--cp", 2)):
            planned, recorded = phases("deepseek_v2", split, prompt=1)["prefill"]
            with self.subTest(split=split):
                self.assert_equal(("flops", "model_flops", *BYTES), planned, recorded)

    def test_costs_with_experts_over_ranks(self):
        """FLOPs that depend on the draw are the sums of what comes back for a token, one row for each rank that it went to."""
        for name, copied, *split in EXPERT_SPLIT:
            for phase, (planned, recorded) in phases(name, split).items():
                with self.subTest(model=name, split=split, phase=phase):
                    self.assert_equal(BYTES, planned, recorded)
                    self.assertLess(abs(planned["flops"] / recorded["flops"] - 1), 1e-3)
                    # Copies count once for MFU, on the rank that has the expert.
                    if phase == "prefill" or not copied:
                        self.assert_equal(("model_flops",), planned, recorded)

    def test_tables_fit_a_terminal(self):
        for args in (("gemma4-26b-a4b", "--tp", 2, "--cp", 2), ("deepseek-v3", "--tp", 8, "--ep", 8, "--weight-dtype", "fp8"),
                     ("gpt-oss-120b", "--cp", 4, "--ep", 4)):
            code, out, err = run(1, "plan", "--model", *args, launcher=False)
            self.assertEqual(code, 0, err)
            self.assertLessEqual(max(len(line) for line in out.splitlines()), 100)
            self.assertIn(f"{args[1][2:]} {args[2]}", out)

    def test_touched_experts_of_a_batch(self):
        """8 tokens choose 4 of 16 experts in each of 2 layers: 14.4 +- 1 a layer."""
        planned, recorded = phases("qwen3_moe", (), batch=8)["decode"]
        self.assert_equal(("flops", "model_flops", "kv_bytes"), planned, recorded)
        expert = 3 * 64 * 32 * 2  # bytes: gate, up and down in bf16
        self.assertLessEqual(abs(planned["weight_bytes"] - recorded["weight_bytes"]), 4 * expert)
        self.assertEqual((planned["weight_bytes"] - recorded["weight_bytes"]) % expert, 0)


if __name__ == "__main__":
    unittest.main()
