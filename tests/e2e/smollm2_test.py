"""The real model, SmolLM2-135M-Instruct from its GGUF, against the reference run: the same ids in f32 at every split."""
import json
import os
import unittest

from program import FIXTURES, record, run

MODEL = os.environ["TESTBED_SMOLLM2"]
SPLITS = ((1, ()), (3, ("--tp", 3)), (2, ("--pp", 2)), (6, ("--tp", 3, "--pp", 2)))


class SmolLM2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(FIXTURES, "smollm2", "reference.json"), encoding="utf-8") as file:
            cls.cases = json.load(file)["cases"]

    def test_reference_prompts_at_every_split(self):
        prompts = [a for case in self.cases for a in ("--prompt-ids", ",".join(map(str, case["ids"])))]
        n = max(len(case["greedy_ids"]) for case in self.cases)
        for ranks, split in SPLITS:
            got = record(ranks, *split, "--model", MODEL, "--compute-dtype", "f32", "--check", "off", *prompts,
                         "--gen-tokens", n, "--ignore-eos")
            for case, request in zip(self.cases, got["requests"]):
                expected = case["greedy_ids"]
                self.assertEqual(request["ids"][:len(expected)], expected, (split, case["name"]))

    def test_text_in_and_text_out(self):
        case = self.cases[0]
        code, out, err = run(3, "--tp", 3, "--model", MODEL, "--compute-dtype", "f32", "--check", "off", "--prompt",
                             case["text"], "--gen-tokens", len(case["greedy_ids"]), "--warmup", 1, "--repeats", 1)
        self.assertEqual(code, 0, err)
        self.assertIn("Paris.", out)
        self.assertIn("Decode is bound by", out)
        got = record(1, "--model", MODEL, "--compute-dtype", "f32", "--check", "off", "--prompt", case["text"],
                     "--gen-tokens", len(case["greedy_ids"]))
        self.assertEqual(got["requests"][0]["ids"], case["greedy_ids_until_eos"])  # stops at the end-of-text id
        self.assertEqual(got["requests"][0]["prompt_tokens"], case["prompt_len"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
