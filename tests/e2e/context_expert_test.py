"""Cases of context, expert and sequence parallelism, through the real program; docs/cases.md lists them. "EQ": the
tokens of one rank, in f32."""
import glob
import json
import os
import random
import struct
import tempfile
import unittest

from cases_test import F32, IDS, LLAMA, Case, contents, raw_tensors, toy_config
from program import greedy, model, read_safetensors, record, run, write_safetensors

MIXTRAL = model("mixtral")  # 3 layers, 8 heads, 2 KV heads, 8 experts, 2 of them a token
SWA = model("mistral_swa")  # windows of 16
RAGGED = [a for n in (1, 5, 17) for a in ("--prompt-ids", ",".join(str(7 * i % 300) for i in range(n)))]


def ids(n):
    return "--prompt-ids", ",".join(str(7 * i % 300) for i in range(n))


def write_llama(folder, std, layers=2, positions=4096):
    """A small llama in F32 whose weights are normal, of the given standard deviation."""
    d, ff, vocab, kv = 64, 96, 128, 32
    config = toy_config(hidden_size=d, intermediate_size=ff, vocab_size=vocab, num_attention_heads=4, head_dim=16,
                        num_key_value_heads=2, num_hidden_layers=layers, max_position_embeddings=positions,
                        tie_word_embeddings=False, torch_dtype="float32", rope_scaling=None, rope_parameters=None,
                        rope_theta=10000.0)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    draw = random.Random(5)
    tensors = {}

    def add(name, *shape, mean=0.0):
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [mean or draw.gauss(0.0, std) for _ in range(n)]
        tensors[name] = ("F32", list(shape), struct.pack(f"<{n}f", *values))

    add("model.embed_tokens.weight", vocab, d)
    add("lm_head.weight", vocab, d)
    add("model.norm.weight", d, mean=1.0)
    for i in range(layers):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            add(f"{layer}{norm}.weight", d, mean=1.0)
        for name, rows, columns in (("self_attn.q", d, d), ("self_attn.k", kv, d), ("self_attn.v", kv, d),
                                    ("self_attn.o", d, d), ("mlp.gate", ff, d), ("mlp.up", ff, d), ("mlp.down", d, ff)):
            add(f"{layer}{name}_proj.weight", rows, columns)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)


def changed_mixtral(folder, change=None, **config):
    """The fixture with another config.json, and its tensors as change({name: (dtype, shape, bytes)}) leaves them."""
    values = json.loads(contents(os.path.join(MIXTRAL, "config.json")))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({**values, **config}, file)
    tensors = {}
    for path in glob.glob(os.path.join(MIXTRAL, "model-*.safetensors")):
        tensors.update(raw_tensors(path))
    if change is not None:
        before = dict(tensors)
        change(tensors)
        assert tensors != before, "nothing was changed"
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)


def logits(ranks, *args):
    """{tensor: (shape, values)} of a run's --logits."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "logits.safetensors")
        code, _, err = run(ranks, *args, "--quiet", "--warmup", 0, "--repeats", 1, "--logits", path)
        assert code == 0, err
        return read_safetensors(path)


class Compared(Case):
    def same_logits(self, got, expected, what):
        """To 2e-4 of logits that reach 13, as on the fixtures: rounding alone tells them apart."""
        self.assertEqual(set(got), set(expected))
        for name, (shape, values) in expected.items():
            self.assertEqual(got[name][0], shape, (what, name))
            if not name.endswith("logits"):
                if name.endswith("greedy_ids"):
                    self.assertEqual(got[name][1], values, (what, name))
                continue
            limit = 2e-4 * max(map(abs, values)) / 13
            self.assertLess(max(abs(a - b) for a, b in zip(got[name][1], values)), limit, (what, name))

    def same_tokens(self, splits, *args):
        expected = greedy(1, *args)
        for ranks, *split in splits:
            self.assertEqual(greedy(ranks, *split, *args), expected, split)


class Context(Compared):
    def test_D8_a_prompt_that_nothing_divides(self):
        """2999 tokens; weights large enough for attention to be far from a plain mean."""
        with tempfile.TemporaryDirectory() as folder:
            write_llama(folder, std=0.2)
            args = ("--model", folder, *F32, "--prompt-tokens", 2999, "--gen-tokens", 4)
            expected = logits(1, *args)
            for ranks, *split in ((4, "--cp", 4), (2, "--cp", 2), (8, "--cp", 8), (4, "--cp", 4, "--cp-layout", "contiguous"),
                                  (4, "--cp", 2, "--tp", 2), (4, "--cp", 4, "--max-step-tokens", 1000)):
                self.same_logits(logits(ranks, *split, *args), expected, split)

    def test_D8_prompts_shorter_than_cp(self):
        for n in (1, 3):
            self.same_tokens(((4, "--cp", 4), (8, "--cp", 8), (4, "--cp", 4, "--cp-layout", "contiguous"),
                              (4, "--cp", 2, "--pp", 2)),
                             "--model", LLAMA, *F32, *ids(n), "--gen-tokens", 6, "--ignore-eos", "--kv-block-size", 2)

    def test_D8_a_ragged_batch(self):
        for name in ("llama3_gqa", "deepseek_v2"):
            self.same_tokens(((2, "--cp", 2), (4, "--cp", 2, "--dp", 2), (4, "--cp", 2, "--pp", 2)), "--model", model(name),
                             *F32, *RAGGED, "--gen-tokens", 6, "--ignore-eos", "--kv-block-size", 4)

    def test_D8_windows_that_exclude_a_ranks_whole_block(self):
        """Of 120 tokens on 4 ranks each has 30 in one piece: the window of 16 sees nothing two ranks away."""
        args = ("--model", SWA, *F32, *ids(120), "--gen-tokens", 6, "--ignore-eos", "--kv-block-size", 2)
        expected = logits(1, *args)
        for split in (("--cp-layout", "contiguous"), ()):
            self.same_logits(logits(4, "--cp", 4, *split, *args), expected, split)

    def test_decoding_reads_every_token_once(self):
        args = ("--model", LLAMA, *F32, *ids(150), "--gen-tokens", 6, "--ignore-eos", "--kv-block-size", 8)
        one = record(1, *args)["phases"]["decode"]
        many = record(4, "--cp", 4, *args)["phases"]["decode"]
        self.assertEqual(many["kv_bytes"], one["kv_bytes"])
        for device in many["per_device"]:
            self.assertLess(device["kv_bytes"], 0.4 * one["kv_bytes"])


class Experts(Compared):
    def test_D9_one_token_leaves_ranks_without_work(self):
        with tempfile.TemporaryDirectory() as folder:
            changed_mixtral(folder, num_experts_per_tok=1)
            args = ("--model", folder, *F32, *ids(1), "--gen-tokens", 4, "--ignore-eos")
            self.same_tokens(((4, "--tp", 4, "--ep", 4), (4, "--tp", 4, "--ep", 4, "--expert-exchange", "all-to-all"),
                              (4, "--tp", 2, "--cp", 2, "--ep", 4)), *args)

    def test_D9_experts_that_the_ranks_do_not_divide(self):
        self.same_tokens(((3, "--dp", 3, "--ep", 3), (3, "--cp", 3, "--ep", 3)), "--model", MIXTRAL, *F32, *RAGGED,
                         "--gen-tokens", 6, "--ignore-eos", "--kv-block-size", 4)

    def test_D9_both_exchanges(self):
        for name in ("mixtral", "deepseek_v3", "gemma4_moe"):
            self.same_tokens(((2, "--tp", 2, "--ep", 2), (2, "--tp", 2, "--ep", 2, "--expert-exchange", "all-to-all")),
                             "--model", model(name), *F32, *RAGGED, "--gen-tokens", 5, "--ignore-eos")

    def test_D9_expert_groups_across_replicas_that_finish_apart(self):
        """The one that is done has to go on answering the other's exchanges."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "prompts.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                for tokens, new in ((5, 12), (1, 2), (17, 3)):
                    file.write(json.dumps({"prompt_ids": [7 * i % 300 for i in range(tokens)], "gen_tokens": new}) + "\n")
            self.same_tokens(((2, "--dp", 2, "--ep", 2), (4, "--dp", 2, "--tp", 2, "--ep", 4)),
                             "--model", MIXTRAL, *F32, "--prompts", path, "--ignore-eos")

    def test_routing_ties_go_to_the_lowest_ids_on_every_rank(self):
        def no_preference(tensors):
            for name, (dtype, shape, raw) in tensors.items():
                if ".gate.weight" in name:
                    tensors[name] = (dtype, shape, bytes(len(raw)))

        with tempfile.TemporaryDirectory() as folder:
            changed_mixtral(folder, no_preference)
            args = ("--model", folder, *F32, *IDS)
            splits = ((4, "--tp", 4, "--ep", 4), (4, "--tp", 2, "--cp", 2, "--ep", 4), (2, "--tp", 2, "--ep", 2))
            self.same_tokens(splits, *args)
            for ranks, *split in ((1,), *splits):
                for phase in record(ranks, *split, *args)["phases"].values():
                    for layer in phase["experts"]["per_layer"]:
                        pairs = layer["tokens_per_expert"]
                        self.assertEqual((pairs[0], sum(pairs[2:])), (pairs[1], 0), (split, layer))
                        self.assertGreater(pairs[0], 0)

    def test_the_same_tokens_go_to_the_same_experts_at_every_split(self):
        args = ("--model", MIXTRAL, *F32, *RAGGED, "--prompt-ids", "9,8", "--gen-tokens", 4, "--ignore-eos",
                "--kv-block-size", 4)

        def chosen(ranks, *split):
            return {name: [layer["tokens_per_expert"] for layer in phase["experts"]["per_layer"]]
                    for name, phase in record(ranks, *split, *args)["phases"].items()}

        expected = chosen(1)
        # Two experts for each of 25 prompt tokens, and for 4 requests in each of 3 steps.
        self.assertEqual({name: sum(layers[0]) for name, layers in expected.items()}, {"prefill": 50, "decode": 24})
        for ranks, *split in ((2, "--tp", 2, "--ep", 2), (2, "--cp", 2), (4, "--cp", 2, "--dp", 2, "--ep", 4),
                              (4, "--pp", 2, "--dp", 2, "--ep", 2)):
            self.assertEqual(chosen(ranks, *split), expected, split)

    def test_illegal_groups_list_what_is_legal(self):
        for ranks, args, says in (
                (4, ("--tp", 4, "--ep", 3, "--model", MIXTRAL), ["--ep 3", "1, 2, 4"]),
                (2, ("--tp", 2, "--ep", 2, "--model", LLAMA), ["no experts", ": 1"]),
                (4, ("--dp", 4, "--ep", 4, "--expert-exchange", "all-reduce", "--model", MIXTRAL, *RAGGED,
                     "--prompt-ids", 1), ["--expert-exchange all-reduce", "auto, all-to-all"]),
                (2, ("--cp", 4, "--model", MIXTRAL), ["2 ranks \u2260", "cp 4"]),
                (3, ("--tp", 3, "--model", MIXTRAL), ["--tp 3", "1, 2, 4, 8"])):
            self.refused(ranks, *args, says=says)


class Numbers(Compared):
    def test_sequence_parallel_tp_gives_the_same_tokens(self):
        """Rows that tp does not divide, and one row on several ranks."""
        for name in ("llama3_gqa", "gemma4_moe", "deepseek_v2"):
            self.same_tokens(((2, "--tp", 2, "--tp-comm", "reduce-scatter"),
                              (4, "--tp", 2, "--pp", 2, "--tp-comm", "reduce-scatter"),
                              (4, "--tp", 2, "--cp", 2, "--tp-comm", "reduce-scatter")),
                             "--model", model(name), *F32, *RAGGED, "--gen-tokens", 5, "--ignore-eos")

    def test_sequence_parallel_tp_moves_as_many_bytes(self):
        """Per layer two reduce-scatters and two all-gathers of [rows, d_model], rows padded to tp."""
        args = ("--model", LLAMA, "--tp", 2, *F32, *IDS)  # a prompt of 5
        layers = record(2, *args, "--tp-comm", "reduce-scatter")["phases"]["prefill"]["layers"]
        padded = 6 * 128 * 4
        for layer in layers:
            self.assertEqual(layer["all_reduce_payload_bytes"], 0)
            self.assertEqual(layer["reduce_scatter_payload_bytes"], 2 * padded)
            self.assertEqual(layer["all_gather_payload_bytes"], 2 * padded)

    def test_deterministic_runs_are_equal_in_every_bit(self):
        args = ("--model", MIXTRAL, "--check", "off", "--tp", 2, "--cp", 2, "--ep", 4, *RAGGED, "--gen-tokens", 6,
                "--ignore-eos", "--deterministic")  # bf16
        first = logits(4, *args)
        self.assertEqual(logits(4, *args), first)
        code, _, err = run(4, *args, "--quiet", "--warmup", 0, "--repeats", 3)
        self.assertEqual(code, 0, err)

    def test_D22_values_beyond_the_range_name_layer_and_rank(self):
        """bf16 reaches 3.39e38: an output projection of 3e38 in layer 1 overflows."""
        with tempfile.TemporaryDirectory() as folder:
            def huge(tensors):
                for name, (dtype, shape, raw) in tensors.items():
                    if name.startswith("model.layers.1.self_attn.o_proj"):
                        self.assertEqual(dtype, "BF16")
                        tensors[name] = (dtype, shape, struct.pack("<H", 0x7F62) * (len(raw) // 2))

            changed_mixtral(folder, huge)
            for ranks, *split in ((1,), (2, "--tp", 2), (2, "--cp", 2), (2, "--pp", 2)):
                code, _, err = run(ranks, *split, "--model", folder, *IDS, "--check", "off", "--quiet")
                self.assertEqual(code, 3, err)
                self.assertRegex(err, r"layer 1 on rank [01]: its output is not finite in bf16")


if __name__ == "__main__":
    unittest.main(verbosity=2)
