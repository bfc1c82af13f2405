"""Bytes, FLOPs and steps of a simulated run are those of the real run of the same configuration, exactly."""
import unittest

from program import model, record

LLAMA = model("llama3_gqa")
IDS = ("--prompt-ids", "3,17,101,44,9,2,250", "--prompt-ids", "5,8", "--gen-tokens", 6, "--ignore-eos")
ON_CPU = ("--device", "cpu")
ON_DGX = ("--device", "sim", "--cluster", "dgx-h100")


class RealBytes(unittest.TestCase):
    PHASE = ("steps", "flops_total", "model_flops_total", "weight_bytes_total", "kv_bytes_total", "flops", "kv_bytes",
             "kv_write_bytes")
    LAYER = ("layer", "weight_bytes", "kv_bytes", "all_reduce_payload_bytes")
    # Which rank of a stage reads an embedding row depends on the ids, which a simulation does not know.
    DEVICE = ("rank", "tp", "pp", "dp", "steps", "flops", "kv_bytes", "kv_write_bytes")
    TRAFFIC = ("op", "axis", "site", "n", "groups", "calls", "per_step", "payload_bytes", "payload_bytes_per_step")

    def both(self, name, ranks, split, *more):
        common = ("--model", model(name), *split, *IDS, "--check", "off", *more)
        real = record(ranks, *ON_CPU, *common)
        simulated = record(1, *ON_DGX, *common)
        self.assertEqual((real["simulated"], simulated["simulated"]), (False, True))
        self.check_phases(real, simulated)
        self.assertEqual(each("weights_bytes", real["memory"]), each("weights_bytes", simulated["memory"]))
        return real, simulated

    def check_phases(self, real, simulated):
        self.assertEqual(list(real["phases"]), list(simulated["phases"]))
        for name, phase in real["phases"].items():
            other = simulated["phases"][name]
            self.assertEqual(only(self.PHASE, phase), only(self.PHASE, other))
            for fields, part in ((self.LAYER, "layers"), (self.DEVICE, "per_device"), (self.TRAFFIC, "collectives")):
                self.assertEqual([only(fields, entry) for entry in phase[part]],
                                 [only(fields, entry) for entry in other[part]], (name, part))
        first, other = (r["phases"]["prefill"] for r in (real, simulated))  # the prompt's ids are known
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

    def test_both_and_replicas(self):
        for name, ranks, split in (("qwen2", 4, ("--tp", 2, "--pp", 2)), ("llama3_gqa", 2, ("--dp", 2))):
            with self.subTest(model=name, split=split):
                self.both(name, ranks, split)

    def test_window_and_chosen_weights(self):
        """A prompt beyond the window of 16, weights widened to f32, f32 on the wire."""
        prompt = ",".join(str(7 * i % 500) for i in range(40))
        f32 = ("--weight-dtype", "f32", "--compute-dtype", "f32")
        self.both("mistral_swa", 2, ("--tp", 2), "--prompt-ids", prompt, *f32)

    def test_named_algorithms_send_what_the_real_ones_send(self):
        """A long prompt makes the real all-reduce change algorithm between prefill and decode; on four ranks (on two
        they send alike) one-shot sends twice as much."""
        common = ("--model", LLAMA, "--tp", 4, "--prompt-tokens", 200, "--batch", 8, "--gen-tokens", 3, "--ignore-eos",
                  "--check", "off")
        real = record(4, *ON_CPU, *common)
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
