"""Bytes, FLOPs and steps of a simulated run are those of the real run of the same configuration, exactly."""
import unittest

from program import model, record

LLAMA = model("llama3_gqa")
IDS = ("--prompt-ids", "3,17,101,44,9,2,250", "--prompt-ids", "5,8", "--gen-tokens", 6, "--ignore-eos")
ON_CPU = ("--device", "cpu")
# Without it a run measures which all-reduce to take for which payload, and fuses some with the norm.
FIXED = {"TESTBED_ONE_SHOT_BYTES": "32768"}
ON_DGX = ("--device", "sim", "--cluster", "dgx-h100")


class RealBytes(unittest.TestCase):
    PHASE = ("steps", "flops_total", "model_flops_total", "weight_bytes_total", "kv_bytes_total", "flops", "kv_bytes",
             "kv_write_bytes")
    LAYER = ("layer", "weight_bytes", "kv_bytes", "all_reduce_payload_bytes", "reduce_scatter_payload_bytes",
             "all_gather_payload_bytes")
    # Which rank of a stage reads an embedding row depends on the ids, which a simulation does not know.
    DEVICE = ("rank", "tp", "pp", "dp", "steps", "flops", "kv_bytes", "kv_write_bytes")
    TRAFFIC = ("op", "axis", "site", "n", "groups", "calls", "per_step", "payload_bytes", "payload_bytes_per_step")

    def both(self, name, ranks, split, *more):
        common = ("--model", model(name), *split, *IDS, "--check", "off", *more)
        real = record(ranks, *ON_CPU, *common, env=FIXED)
        simulated = record(1, *ON_DGX, *common)
        self.assertEqual((real["simulated"], simulated["simulated"]), (False, True))
        self.check_phases(real, simulated)
        self.assertEqual(each("weights_bytes", real["memory"]), each("weights_bytes", simulated["memory"]))
        return real, simulated

    def check_phases(self, real, simulated):
        self.assertEqual(list(real["phases"]), list(simulated["phases"]))
        for name, phase in real["phases"].items():
            other = simulated["phases"][name]
            drawn = {layer["layer"] for layer in phase["experts"]["per_layer"]} if phase["experts"] else set()
            unknown = {"weight_bytes", "weight_bytes_total"} if drawn else set()
            self.assertEqual(only(set(self.PHASE) - unknown, phase), only(set(self.PHASE) - unknown, other))
            for layer, its in zip(phase["layers"], other["layers"], strict=True):
                fields = set(self.LAYER) - (unknown if layer["layer"] in drawn else set())
                self.assertEqual(only(fields, layer), only(fields, its), name)
            for fields, part in ((self.DEVICE, "per_device"), (self.TRAFFIC, "collectives")):
                self.assertEqual([only(fields, entry) for entry in phase[part]],
                                 [only(fields, entry) for entry in other[part]], (name, part))
        first, other = (r["phases"]["prefill"] for r in (real, simulated))  # the prompt's ids are known
        if not first["experts"]:
            self.assertEqual(each("weight_bytes", first["per_device"]), each("weight_bytes", other["per_device"]))

    def test_tensor_parallel(self):
        for name, tp in (("llama3_gqa", 2), ("smollm_tied", 3), ("llama_mha_f32", 4)):
            with self.subTest(model=name, tp=tp):
                real, simulated = self.both(name, tp, ("--tp", tp))
                self.check_wire(real, simulated)

    def test_pipeline(self):
        for name, split in (("qwen3", ("--pp", 2)), ("llama_5layers", ("--pp", 2, "--virtual-stages", 2))):
            with self.subTest(model=name, split=split):
                real, simulated = self.both(name, 2, split)
                self.check_wire(real, simulated)

    def test_context_parallel(self):
        """Around the ring the prompt's blocks; decoding, partial results. MLA has its latents in the cache, gemma3 most
        of its layers a window: what the ring leaves out of them is the same."""
        prompt = ("--prompt-ids", ",".join(str(7 * i % 300) for i in range(60)), "--kv-block-size", 4)
        for name, ranks, split in (("llama3_gqa", 2, ("--cp", 2)), ("gemma3", 4, ("--cp", 2, "--tp", 2)),
                                   ("llama_5layers", 4, ("--cp", 4, "--cp-layout", "contiguous"))):
            with self.subTest(model=name, split=split):
                real, simulated = self.both(name, ranks, split, *prompt)
                mine, other = (r["phases"]["prefill"]["ring"] for r in (real, simulated))
                self.assertEqual(each("sent_bytes", mine), each("sent_bytes", other))
                self.assertGreater(mine[0]["sent_bytes"], 0)
                self.assertIsNone(simulated["phases"]["decode"]["ring"])

    def test_sequence_parallel_tp(self):
        for name, ranks, split in (("llama3_gqa", 2, ("--tp", 2)), ("gemma2", 4, ("--tp", 2, "--pp", 2))):
            with self.subTest(model=name, split=split):
                real, _ = self.both(name, ranks, (*split, "--tp-comm", "reduce-scatter"))
                for layer in real["phases"]["prefill"]["layers"]:
                    self.assertEqual(layer["all_reduce_payload_bytes"], 0)
                    # The last layer of a stage passes slices on; the next stage gathers, outside its layers.
                    passes_on = "--pp" in split and layer["layer"] == real["layers"] // 2 - 1
                    self.assertEqual(layer["reduce_scatter_payload_bytes"],
                                     layer["all_gather_payload_bytes"] * (2 if passes_on else 1))

    def test_experts_cut_over_tp(self):
        """Which experts a token draws is not known to a simulation, so which weights are read is not; what it has to
        multiply, keep and send is."""
        for name, ranks, split in (("deepseek_v2", 2, ("--cp", 2)), ("mixtral", 2, ("--tp", 2)),
                                   ("gpt_oss", 2, ("--tp", 2, "--tp-comm", "reduce-scatter")),
                                   ("gemma4_moe", 2, ("--pp", 2))):
            with self.subTest(model=name, split=split):
                real, simulated = self.both(name, ranks, split)
                for phase, other in zip(*(r["phases"].values() for r in (real, simulated)), strict=True):
                    for mine, drawn in zip(*(p["experts"]["per_layer"] for p in (phase, other)), strict=True):
                        self.assertEqual(sum(mine["tokens_per_expert"]), sum(drawn["tokens_per_expert"]))

    def test_both_and_replicas(self):
        for name, ranks, split in (("qwen2", 4, ("--tp", 2, "--pp", 2)), ("llama3_gqa", 2, ("--dp", 2))):
            with self.subTest(model=name, split=split):
                self.both(name, ranks, split)

    def test_window_and_chosen_weights(self):
        """A prompt beyond the window of 16, weights widened to f32, f32 on the wire."""
        prompt = ",".join(str(7 * i % 500) for i in range(40))
        f32 = ("--weight-dtype", "f32", "--compute-dtype", "f32")
        self.both("mistral_swa", 2, ("--tp", 2), "--prompt-ids", prompt, *f32)

    def test_quantised_weights(self):
        self.both("llama3_gqa", 2, ("--tp", 2), "--weight-dtype", "int4")

    def test_named_algorithms_send_what_the_real_ones_send(self):
        """A long prompt makes the real all-reduce change algorithm between prefill and decode; on four ranks (on two
        they send alike) one-shot sends twice as much."""
        common = ("--model", LLAMA, "--tp", 4, "--prompt-tokens", 200, "--batch", 8, "--gen-tokens", 3, "--ignore-eos",
                  "--check", "off")
        real = record(4, *ON_CPU, *common, env=FIXED)
        used = {name: algorithm_of(phase) for name, phase in real["phases"].items()}
        self.assertEqual(used, {"prefill": "two-shot", "decode": "one-shot"})
        for name, algorithm in used.items():
            simulated = record(1, *ON_DGX, *common, "--algorithm", algorithm)
            self.assertEqual(simulated["options"]["algorithm"], algorithm)
            phase, other = real["phases"][name], simulated["phases"][name]
            self.assertEqual(algorithm_of(other), algorithm)
            fields = (*self.LAYER, "all_reduce_wire_bytes")
            self.assertEqual([only(fields, layer) for layer in phase["layers"]],
                             [only(fields, layer) for layer in other["layers"]])
            sent = {"one-shot": 3, "two-shot": 3 / 2}[algorithm]
            for layer in phase["layers"]:
                self.assertEqual(layer["all_reduce_wire_bytes"], sent * layer["all_reduce_payload_bytes"])

    def check_wire(self, real, simulated):
        """Where both chose the same algorithm, each device sends the same."""
        for name, phase in real["phases"].items():
            for mine, other in zip(phase["collectives"], simulated["phases"][name]["collectives"], strict=True):
                if mine["op"] == "all_reduce":
                    self.assertEqual((mine["algorithm"], other["algorithm"]), ("one-shot", "one-shot"))
                self.assertEqual(mine["wire_bytes_per_device"], other["wire_bytes_per_device"], (mine, other))


def only(fields, entry):
    return {field: entry[field] for field in fields}


def each(field, entries):
    return [entry[field] for entry in entries]


def algorithm_of(phase):
    algorithm, = {c["algorithm"] for c in phase["collectives"] if c["op"] == "all_reduce"}
    return algorithm


if __name__ == "__main__":
    unittest.main(verbosity=2)
