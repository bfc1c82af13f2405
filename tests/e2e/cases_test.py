"""Cases from the field, through the real program; each test is named after its case (docs/cases.md lists them)."""
import glob
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from program import (BIN, FIXTURES, MPIRUN, SOURCE, greedy, model, read_safetensors, record, run, strict_json,
                     write_safetensors)

LLAMA = model("llama3_gqa")      # 4 layers, 8 heads, 2 KV heads, vocabulary 512
SMOL = model("smollm_tied")      # tied, 9 heads, 3 KV heads, vocabulary 1003
LLAMA5 = model("llama_5layers")
F32 = ("--compute-dtype", "f32", "--check", "off")
IDS = ("--prompt-ids", "3,17,101,44,9", "--gen-tokens", 8, "--ignore-eos")
CHECKERS = os.path.join(SOURCE, "tests", "e2e")


class Case(unittest.TestCase):
    def refused(self, ranks, *args, says, **kw):
        """Exit code 2, one line from rank 0 that says what is wrong, no signal, quickly."""
        began = time.monotonic()
        code, out, err = run(ranks, *args, **kw)
        lines = [line for line in err.splitlines() if line.startswith("testbed:")]
        self.assertEqual(code, 2, err)
        self.assertEqual(len(lines), 1, err)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, lines[0])
        self.assertNotIn("signal", err)
        self.assertLess(time.monotonic() - began, 30)
        return lines[0]


def contents(path, mode="r"):
    with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
        return file.read()


def toy_config(**changes):
    config = json.loads(contents(os.path.join(LLAMA, "config_hub.json")))
    config.update(changes)
    return {k: v for k, v in config.items() if v is not None}


def toy(folder, **changes):
    """A folder with only a config.json; for --weights random."""
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(toy_config(**changes), file)
    return folder


def raw_tensors(path):
    """{name: (dtype, shape, bytes)}, as write_safetensors takes them."""
    raw = contents(path, "rb")
    n, = struct.unpack("<Q", raw[:8])
    tensors = {}
    for name, info in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            tensors[name] = (info["dtype"], info["shape"], raw[8 + n + begin:8 + n + end])
    return tensors


class Splits(Case):
    def test_D1_heads_that_do_not_divide_list_the_legal_degrees(self):
        with tempfile.TemporaryDirectory() as folder:
            toy(folder, num_attention_heads=28, num_key_value_heads=4, hidden_size=448, head_dim=16)
            self.refused(8, "--tp", 8, "--model", folder, "--weights", "random",
                         says=["28 heads do not divide by 8", "1, 2, 4, 28"])

    def test_D2_odd_vocabularies_give_the_same_tokens(self):
        for vocab, tp in ((32001, 2), (32064, 4)):
            with tempfile.TemporaryDirectory() as folder:
                toy(folder, vocab_size=vocab)
                args = ("--model", folder, "--weights", "random", *F32, *IDS)
                self.assertEqual(greedy(tp, "--tp", tp, *args), greedy(1, *args))

    def test_D3_replicated_kv_heads_give_the_same_tokens_and_are_counted(self):
        one = record(1, "--model", LLAMA, *F32, *IDS)
        for tp in (4, 8):
            many = record(tp, "--model", LLAMA, "--tp", tp, *F32, *IDS)
            self.assertEqual([r["ids"] for r in many["requests"]], [r["ids"] for r in one["requests"]])
            self.assertEqual(many["phases"]["decode"]["kv_bytes"], one["phases"]["decode"]["kv_bytes"] * tp // 2)
        with tempfile.TemporaryDirectory() as folder:
            toy(folder, num_attention_heads=12, num_key_value_heads=3, hidden_size=192)
            self.refused(4, "--tp", 4, "--model", folder, "--weights", "random", says="3 KV heads")

    def test_D5_biases_once_and_fused_tensors_cut_per_part(self):
        with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as fused:
            write_biased_model(plain, fused=False)
            write_biased_model(fused, fused=True)
            expected = greedy(1, "--model", plain, *F32, *IDS)
            for tp in (1, 2, 4):
                self.assertEqual(greedy(tp, "--tp", tp, "--model", plain, *F32, *IDS), expected)
                self.assertEqual(greedy(tp, "--tp", tp, "--model", fused, *F32, *IDS), expected)

    def test_D6_tied_head_under_pp_is_reported(self):
        one = record(1, "--model", SMOL, *F32, *IDS)
        two = record(2, "--pp", 2, "--model", SMOL, *F32, *IDS)
        self.assertEqual(two["requests"][0]["ids"], one["requests"][0]["ids"])
        table = 1003 * 144 * 2
        held = [m["weights_bytes"] for m in two["memory"]]
        self.assertEqual(sum(held), one["memory"][0]["weights_bytes"] + table)
        decode = two["phases"]["decode"]["per_device"]
        self.assertGreater(decode[1]["weight_bytes"], table)  # the last stage reads the head

    def test_D7_microbatches_fewer_than_stages(self):
        expected = greedy(1, "--model", LLAMA, *F32, *IDS)
        got = record(4, "--pp", 4, "--microbatches", 1, "--model", LLAMA, *F32, *IDS)
        self.assertEqual([r["ids"] for r in got["requests"]], expected)
        pipeline = got["phases"]["prefill"]["pipeline"]
        self.assertAlmostEqual(pipeline["bubble_formula"], 3 / 4)
        self.assertAlmostEqual(got["phases"]["decode"]["pipeline"]["bubble_formula"], 3 / 4)

    def test_interleaved_stages_and_dp_give_the_same_tokens(self):
        prompts = ("--prompt-ids", "3,17,101,44,9", "--prompt-ids", "5", "--prompt-ids", "7,8,9", "--gen-tokens", 6,
                   "--ignore-eos")
        expected = greedy(1, "--model", LLAMA, *F32, *prompts)
        for ranks, split in ((2, ("--pp", 2, "--virtual-stages", 2)), (2, ("--dp", 2)),
                             (4, ("--tp", 2, "--pp", 2, "--microbatches", 3)), (4, ("--pp", 2, "--dp", 2))):
            self.assertEqual(greedy(ranks, *split, "--model", LLAMA, *F32, *prompts), expected, split)

    def test_D17_world_size_mismatch_and_singletons(self):
        self.refused(3, "--tp", 2, "--model", LLAMA, says="3 ranks \u2260 tp 2")
        self.refused(1, "--model", LLAMA, says="SLURM_NTASKS", env={"SLURM_NTASKS": "4"}, launcher=False)


def write_biased_model(folder, fused):
    """llama_5layers in F32 with q, k, v and output biases (attention_bias), its projections fused or not."""
    config = json.loads(contents(os.path.join(LLAMA5, "config_hub.json")))
    config.update(attention_bias=True, torch_dtype="float32")
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    tensors = raw_tensors(os.path.join(LLAMA5, "model.safetensors"))
    for layer in range(config["num_hidden_layers"]):
        attn = f"model.layers.{layer}.self_attn."
        for part in "qkvo":
            rows = tensors[f"{attn}{part}_proj.weight"][1][0]
            bias = [0.3 * math.sin(1 + 7 * layer + i * (1 + "qkvo".index(part))) for i in range(rows)]
            tensors[f"{attn}{part}_proj.bias"] = ("F32", [rows], struct.pack(f"<{rows}f", *bias))
        if fused:
            mlp = f"model.layers.{layer}.mlp."
            for suffix in (".weight", ".bias"):
                fuse(tensors, attn + "qkv_proj" + suffix, [f"{attn}{p}_proj{suffix}" for p in "qkv"])
            fuse(tensors, mlp + "gate_up_proj.weight", [mlp + "gate_proj.weight", mlp + "up_proj.weight"])
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)


def fuse(tensors, name, parts):
    taken = [tensors.pop(part) for part in parts]
    shape = [sum(shape[0] for _, shape, _ in taken), *taken[0][1][1:]]
    tensors[name] = (taken[0][0], shape, b"".join(raw for _, _, raw in taken))


class Inputs(Case):
    def test_D14_a_missing_shard_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in glob.glob(os.path.join(LLAMA, "*")):
                shutil.copy(path, folder)
            os.remove(os.path.join(folder, "model-00002-of-00002.safetensors"))
            self.refused(2, "--tp", 2, "--model", folder, says="model-00002-of-00002.safetensors")

    def test_D13_a_truncated_file_is_refused_once(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(LLAMA5, "config.json"), folder)
            raw = contents(os.path.join(LLAMA5, "model.safetensors"), "rb")
            with open(os.path.join(folder, "model.safetensors"), "wb") as file:
                file.write(raw[:-100])
            self.refused(2, "--tp", 2, "--model", folder, says="model.safetensors")

    def test_D16_gguf_and_its_split_equal_safetensors(self):
        expected = greedy(1, "--model", LLAMA5, *F32, *IDS)
        for name in ("llama_5layers.gguf", "llama_5layers_split-00001-of-00002.gguf"):
            path = os.path.join(FIXTURES, "gguf", name)
            self.assertEqual(greedy(2, "--tp", 2, "--model", path, *F32, *IDS), expected)

    def test_D20_prompt_edges_are_refused(self):
        self.refused(1, "--model", LLAMA, "--prompt-ids", "", says="prompt")
        self.refused(1, "--model", LLAMA, "--prompt-ids", "1,2", "--gen-tokens", 255, says="256 positions")
        self.refused(1, "--model", LLAMA, "--prompt-ids", "512", says="vocabulary of 512")

    def test_D20_each_row_of_a_ragged_batch_equals_its_solo_run(self):
        prompts = [",".join(str(7 * i % 500) for i in range(n)) for n in (1, 5, 17)]
        common = ("--model", LLAMA, *F32, "--gen-tokens", 6, "--ignore-eos")
        together = greedy(2, "--tp", 2, *common, *[a for p in prompts for a in ("--prompt-ids", p)])
        alone = [greedy(2, "--tp", 2, *common, "--prompt-ids", p)[0] for p in prompts]
        self.assertEqual(together, alone)

    def test_prompts_longer_than_a_step_are_taken_in_chunks(self):
        with tempfile.TemporaryDirectory() as folder:
            config = json.loads(contents(os.path.join(LLAMA5, "config_hub.json")))
            config["max_position_embeddings"] = 8192
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config, file)
            shutil.copy(os.path.join(LLAMA5, "model.safetensors"), folder)
            for tokens, steps in ((2049, 2), (6000, 3)):
                args = ("--model", folder, *F32, "--prompt-tokens", tokens, "--gen-tokens", 4)
                expected = record(1, *args)
                self.assertEqual(expected["phases"]["prefill"]["steps"], steps)
                for ranks, split in ((2, ("--tp", 2)), (2, ("--pp", 2)), (4, ("--tp", 2, "--pp", 2))):
                    got = record(ranks, *split, *args)
                    self.assertEqual(got["requests"][0]["ids"], expected["requests"][0]["ids"], (tokens, split))

    def test_replicas_may_generate_unequally_long(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "prompts.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                for n in (1, 1, 90):
                    file.write(json.dumps({"prompt_ids": [5, 6, n], "gen_tokens": n}) + "\n")
            args = ("--model", LLAMA, *F32, "--prompts", path, "--ignore-eos")
            got = record(4, "--dp", 2, "--tp", 2, *args)
            self.assertEqual([r["ids"] for r in got["requests"]], greedy(1, *args))
            self.assertTrue(any("replicas had" in label for label in got["labels"]))
            payloads = {layer["all_reduce_payload_bytes"] for layer in got["phases"]["decode"]["layers"]}
            self.assertEqual(payloads, {2 * 128 * 4})

    def test_D21_sampling_is_the_same_at_every_degree(self):
        args = ("--model", LLAMA, *F32, *IDS, "--seed", 1)
        hot = [greedy(n, "--tp", n, *args, "--temperature", 0.8) for n in (1, 2, 4)]
        self.assertEqual(hot[0], hot[1])
        self.assertEqual(hot[0], hot[2])
        self.assertNotEqual(hot[0], greedy(1, *args))
        self.assertEqual(greedy(2, "--tp", 2, *args, "--temperature", 0), greedy(1, *args))

    def test_D25_misspelt_toml_key_is_refused_with_its_line(self):
        text = contents(os.path.join(SOURCE, "configs", "models", "smollm2-135m.toml"))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text + "\nn_layer = 3\n")
            line = self.refused(1, "--model", path, says=["n_layer", "model.toml:"])
            self.assertIn(f":{len(text.splitlines()) + 2}", line)

    def test_ids_do_not_need_a_tokenizer(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in glob.glob(os.path.join(LLAMA5, "*")):
                shutil.copy(path, folder)
            with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
                file.write('{"model": {"type": "Unigram"}}')
            self.assertEqual(greedy(1, "--model", folder, *F32, *IDS), greedy(1, "--model", LLAMA5, *F32, *IDS))
            self.refused(2, "--tp", 2, "--model", folder, "--prompt", "text", says="tokenizer.json")

    def test_what_the_environment_asks_wrongly_is_refused(self):
        self.refused(2, "--tp", 2, "--model", LLAMA, *IDS, says="TESTBED_ISA", env={"TESTBED_ISA": "avx9"})
        self.refused(2, "--tp", 2, "--model", LLAMA, *IDS, says="TESTBED_ONE_SHOT_BYTES",
                     env={"TESTBED_ONE_SHOT_BYTES": "32k"})

    def test_every_instruction_set_gives_the_same_tokens(self):
        expected = greedy(1, "--model", LLAMA, *F32, *IDS)
        for isa in ("portable", "avx2"):
            got = record(2, "--tp", 2, "--model", LLAMA, *F32, *IDS, env={"TESTBED_ISA": isa})
            self.assertEqual([r["ids"] for r in got["requests"]], expected)
            self.assertIn(isa, got["fingerprint"]["devices"][0])

    def test_every_instruction_set_computes_quantised_weights(self):
        for isa in ("portable", "avx2"):
            for weights in ("int8", "int4"):
                got = record(2, "--tp", 2, "--model", LLAMA, *IDS, "--weight-dtype", weights, "--compute-dtype", "bf16",
                             "--check", "full", env={"TESTBED_ISA": isa})
                self.assertIn(isa, got["fingerprint"]["devices"][0])
                self.assertIn(f"weights converted: bf16 -> {weights}-g32", got["labels"])
                check = got["checks"]["against_one_rank"]
                self.assertGreater(check["compared"], 0)
                self.assertIsNone(check["first_difference"])

    def test_D4_groups_of_weights_are_cut_at_their_ends_or_the_split_is_refused(self):
        self.refused(2, "--tp", 2, "--model", LLAMA, *IDS, "--weight-dtype", "int8", "--weight-group", 128,
                     says=("blocks of 128", "legal for", ": 1"))
        got = record(2, "--tp", 2, "--model", LLAMA, *IDS, "--weight-dtype", "int8", "--check", "full")
        self.assertEqual(got["weight_dtype"], "int8")
        for label in ("weights converted: bf16 -> int8-g32", "int8 weights: activations quantised to int8 in groups of 32",
                      "MFU is against the peak of int8 products"):
            self.assertIn(label, got["labels"])
        check = got["checks"]["against_one_rank"]
        self.assertGreater(check["compared"], 0)
        self.assertIsNone(check["first_difference"])

    def test_labels_name_what_became_of_every_stages_weights(self):
        got = record(3, "--pp", 3, "--model", model("deepseek_v2"), *IDS, "--weight-dtype", "int8", "--check", "off")
        self.assertIn("not quantised: router gates, bf16", got["labels"])  # the first stage is layer 0, without experts
        self.assertEqual(len(set(got["labels"])), len(got["labels"]))

    def test_weight_groups_need_a_quantised_dtype(self):
        self.refused(1, "--model", LLAMA, *IDS, "--weight-group", 32, says="needs --weight-dtype int8, int4 or fp8")
        self.refused(1, "--model", LLAMA, *IDS, "--weight-dtype", "int4", "--weight-group", "row", says="32, 128")

    def test_unknown_options_and_models_are_mistakes(self):
        self.refused(2, "--model", LLAMA, "--no-such-option", says="no-such-option")
        self.refused(2, "--model", "no-such-model", says="no-such-model")


class Outputs(Case):
    def test_D25_every_output_is_read_by_strict_parsers(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = {kind: os.path.join(folder, kind) for kind in ("json", "csv", "trace")}
            code, out, err = run(4, "--tp", 2, "--pp", 2, "--model", LLAMA, *IDS, "--warmup", 1, "--repeats", 2,
                                 *[a for kind, path in paths.items() for a in (f"--{kind}", path)],
                                 env={"LC_ALL": "de_DE.UTF-8"})
            self.assertEqual(code, 0, err)
            for kind, checker in (("json", "check_record.py"), ("csv", "check_csv.py"), ("trace", "check_trace.py")):
                done = subprocess.run([sys.executable, os.path.join(CHECKERS, checker), paths[kind]],
                                      capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(sorted(os.listdir(folder)), sorted(paths))  # no temporary file stays
            self.assertIn("decode", out)

    def test_D25_standard_output_carries_only_what_was_asked_for(self):
        code, out, err = run(2, "--tp", 2, "--model", LLAMA, *IDS, "--warmup", 0, "--repeats", 1, "--json", "-")
        self.assertEqual(code, 0, err)
        self.assertEqual(strict_json(out)["world_size"], 2)

    def test_D25_an_output_that_cannot_be_written_is_refused_before_the_run(self):
        self.refused(2, "--tp", 2, "--model", LLAMA, *IDS, "--repeats", 100000, "--json", "/nowhere/x.json",
                     says="/nowhere/x.json")

    def test_D26_one_token_has_no_tpot_and_rates_are_apart(self):
        one = record(1, "--model", LLAMA, "--prompt-tokens", 64, "--gen-tokens", 1)
        self.assertIsNone(one["requests"][0]["tpot_ms"])
        self.assertEqual(one["requests"][0]["generated_tokens"], 1)
        self.assertNotIn("decode", {k for k, v in one["phases"].items() if v})

    def test_D35_one_rank_has_no_bus_bandwidth(self):
        one = record(1, "--model", LLAMA, *IDS)
        self.assertEqual(one["phases"]["decode"]["collectives"], [])

    def test_D24_warm_up_is_separate(self):
        for warmup in (0, 3):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "r.json")
                code, _, err = run(1, "--model", LLAMA, *IDS, "--quiet", "--warmup", warmup, "--repeats", 2,
                                   "--json", path)
                self.assertEqual(code, 0, err)
                got = strict_json(contents(path))
                self.assertEqual(got["timing"]["step_ms"]["n"], 2 * 7)  # 8 tokens: 7 decode steps a repeat
                self.assertGreater(got["timing"]["step_ms"]["min"], 0)

    def test_D31_a_late_rank_is_named_and_the_others_wait(self):
        late = record(3, "--tp", 3, "--model", SMOL, *IDS, "--inject", "delay:rank=2,us=5000")
        decode = late["phases"]["decode"]
        reduces = [c for c in decode["collectives"] if c["op"] == "all_reduce"]
        self.assertTrue(reduces)
        for c in reduces:
            if c["site"] in ("attention", "mlp"):
                self.assertEqual(c["latest"][0]["rank"], 2)
                self.assertGreater(c["latest"][0]["median_us"], 4000)
        devices = {d["rank"]: d for d in decode["per_device"]}
        per_step = 2 * 3 * 5.0  # two all-reduces in each of 3 layers, 5 ms each
        for rank in (0, 1):
            self.assertGreater(devices[rank]["wait_ms"], 0.9 * per_step)
        self.assertLess(devices[2]["wait_ms"], 0.5 * per_step)
        self.assertTrue(any("delay" in label for label in late["labels"]))

    def test_context_takes_tokens_as_cached(self):
        got = record(1, "--model", LLAMA, "--context", 200, "--gen-tokens", 8, "--compute-dtype", "bf16")
        decode = got["phases"]["decode"]
        # Steps at positions 201..207 or so read K and V of all earlier tokens: 4 layers, 2 heads of 16, bf16.
        per_token = 2 * 4 * 2 * 16 * 2
        self.assertEqual(decode["kv_bytes"] % 1, 0)
        self.assertGreater(decode["kv_bytes"], 200 * per_token)
        self.assertLess(decode["kv_bytes"], 210 * per_token)
        self.assertTrue(any("synthetic" in label for label in got["labels"]))


class Bytes(Case):
    """The byte counts are the closed forms, exactly."""

    def test_weights_kv_and_all_reduce_bytes(self):
        heads, kv, hd, d, ff, layers, vocab = 8, 2, 16, 128, 192, 4, 512
        for tp, pp in ((1, 1), (2, 1), (4, 1), (2, 2), (1, 4)):
            got = record(tp * pp, "--tp", tp, "--pp", pp, "--model", LLAMA, *IDS)  # bf16
            decode = got["phases"]["decode"]
            replicas = max(1, tp // kv)
            matrices = layers * ((2 * heads + 2 * kv * replicas) * hd * d + 3 * d * ff) + vocab * d
            norms = tp * (2 * layers + 1) * d * 4  # F32, on every tp rank
            embedding = d * 2                      # one gathered row
            self.assertEqual(decode["weight_bytes"], matrices * 2 + norms + embedding, (tp, pp))
            if tp > 1:
                payload = {layer["all_reduce_payload_bytes"] for layer in decode["layers"]}
                self.assertEqual(payload, {2 * 1 * d * 2})
                prefill = {layer["all_reduce_payload_bytes"] for layer in got["phases"]["prefill"]["layers"]}
                self.assertEqual(prefill, {2 * 5 * d * 2})
            # Decode steps at positions 5..11 see 6..12 tokens: 9 on average.
            self.assertEqual(decode["kv_bytes"], 9 * 2 * layers * kv * replicas * hd * 2, (tp, pp))

    def test_shares_and_parts_add_up_on_every_device(self):
        got = record(4, "--tp", 2, "--pp", 2, "--model", LLAMA, *IDS)
        for phase in ("prefill", "decode"):
            part = got["phases"][phase]
            self.assertAlmostEqual(sum(part["shares"].values()), 1.0, places=9)


class Reference(Case):
    def test_logits_file_against_the_fixture(self):
        expected = read_safetensors(os.path.join(LLAMA, "expected_f64.safetensors"))
        ids = read_safetensors(os.path.join(LLAMA, "expected.safetensors"))
        splits = ((1, ()), (2, ("--tp", 2)), (3, ("--pp", 3)), (4, ("--tp", 2, "--pp", 2)),
                  (8, ("--tp", 4, "--pp", 2)), (2, ("--pp", 2, "--virtual-stages", 2)))
        for ranks, split in splits:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "logits.safetensors")
                prompts = []
                for k in range(3):
                    prompts += ["--prompt-ids", ",".join(map(str, ids[f"case{k}.prompt_ids"][1]))]
                code, _, err = run(ranks, *split, "--model", LLAMA, *prompts, "--gen-tokens", 24, "--ignore-eos", *F32,
                                   "--quiet", "--warmup", 0, "--repeats", 1, "--logits", path)
                self.assertEqual(code, 0, err)
                got = read_safetensors(path)
                for k in range(3):
                    self.assertEqual(got[f"request{k}.greedy_ids"][1], ids[f"case{k}.greedy_ids"][1])
                    for kind in ("prompt_logits", "greedy_logits"):
                        a, b = got[f"request{k}.{kind}"], expected[f"case{k}.{kind}"]
                        self.assertEqual(a[0], b[0])
                        self.assertLess(max(abs(x - y) for x, y in zip(a[1], b[1])), 2e-4, (split, kind))

    def test_random_weights_are_the_same_model_at_every_sharding(self):
        args = ("--model", "smollm2-135m", "--layers", 2, *F32, *IDS)
        expected = greedy(1, *args)
        self.assertEqual(greedy(3, "--tp", 3, *args), expected)
        self.assertEqual(greedy(2, "--pp", 2, *args), expected)
        self.assertNotEqual(greedy(1, *args, "--seed", 9), expected)

    def test_check_compares_the_split_with_one_rank(self):
        got = record(4, "--tp", 2, "--pp", 2, "--model", LLAMA, *IDS, "--check", "full")
        check = got["checks"]["against_one_rank"]
        self.assertEqual(check["mode"], "full")
        self.assertEqual(check["compared"], 17 * 512)
        self.assertIsNone(check["first_difference"])
        self.assertTrue(got["checks"]["replicas_bitwise_equal"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
