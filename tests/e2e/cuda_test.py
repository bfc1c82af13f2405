"""--device cuda in the real program, on the emulation (tests/cuda_emulation)."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from program import BIN, FIXTURES, MPIRUN, SOURCE, model, ranks_of, record, run, strict_json

LLAMA = model("llama3_gqa")
IDS = ("--prompt-ids", "3,17,101,44,9", "--gen-tokens", 6, "--ignore-eos")
CUDA = ("--device", "cuda")
F32 = ("--compute-dtype", "f32", "--weight-dtype", "f32")  # a GPU would convert other weights to f32, too
BASE = ("--model", LLAMA, *IDS, "--check", "off")
QUICK = (*BASE, "--warmup", 0, "--repeats", 1)


class Cuda(unittest.TestCase):
    def refused(self, ranks, *args, says, code=2, env=None):
        got, _, err = run(ranks, *QUICK, *args, env=env)
        lines = [line for line in err.splitlines() if line.startswith("testbed:")]
        self.assertEqual(got, code, err)
        self.assertEqual(len(lines), 1, err)
        self.assertRegex(lines[0], says)
        self.assertNotIn("signal", err)


class Placement(Cuda):
    def test_auto_takes_the_GPUs_and_says_so(self):
        code, out, err = run(1, *QUICK)
        self.assertEqual(code, 0, err)
        self.assertIn("--device auto: every rank sees a GPU", err)
        self.assertIn("cuda on 1 rank", out)

    def test_ranks_without_a_GPU_are_named(self):
        script = f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && export CUDA_VISIBLE_DEVICES=; exec "{BIN}" "$@"'
        for device, says in (("cuda", "rank 1 sees no GPU on host"), ("auto", "ranks 0 see a GPU and ranks 1 none")):
            done = subprocess.run(
                [MPIRUN, "60", "2", "bash", "-c", script, "-", *map(str, QUICK), "--tp", "2", "--device", device],
                capture_output=True, timeout=80, stdin=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr.decode())

    def test_no_driver_and_no_GPU_are_one_line(self):
        self.refused(1, *CUDA, env={"TESTBED_EMULATED_NO_DRIVER": "1"}, says="no NVIDIA driver .*code 35, cudaErrorInsufficientDriver")
        self.refused(1, *CUDA, env={"TESTBED_EMULATED_GPUS": "0"}, says="rank 0 sees no GPU")

    def test_D18_two_ranks_of_one_GPU_are_refused_or_labelled(self):
        one = {"TESTBED_EMULATED_GPUS": "1"}
        self.refused(2, *CUDA, "--tp", 2, env=one, says="ranks 0 and 1 of host .* both use GPU 0000:01:00.0")
        got = record(2, *BASE, *CUDA, "--tp", 2, "--allow-shared-gpu", env=one)
        self.assertTrue(any(re.match("shared GPU 0000:01:00.0 of host .*: ranks 0, 1", label) for label in got["labels"]))

    def test_D18_a_probe_too(self):
        one = {"TESTBED_EMULATED_GPUS": "1"}
        with tempfile.TemporaryDirectory() as folder:
            profile = os.path.join(folder, "here.toml")
            probe = ("probe", *CUDA, "--acceptance", profile, "--stage", "links", "--max-bytes", 65536, "--quiet")
            for refused in (("probe", *CUDA), probe):
                code, _, err = run(2, *refused, env=one)
                self.assertEqual(code, 2, err)
                self.assertRegex(err, "ranks 0 and 1 of host .* both use GPU 0000:01:00.0")
            code, _, err = run(2, *probe, "--allow-shared-gpu", env=one)
            self.assertEqual(code, 0, err)
            with open(profile, encoding="utf-8") as file:
                self.assertRegex(file.read(), "shared GPU 0000:01:00.0 of host .*: ranks 0, 1")
        for device in ("cpu", "sim"):
            code, _, err = run(1, "probe", "--device", device, "--allow-shared-gpu")
            self.assertEqual(code, 2, err)
            self.assertIn("--allow-shared-gpu is of --device cuda", err)

    def test_visible_devices_are_taken_in_their_order(self):
        as_listed = record(2, *BASE, *CUDA, "--tp", 2, env={"CUDA_VISIBLE_DEVICES": "3,1"})
        gpus = [peaks["memory_domain"] for peaks in as_listed["peaks"]]
        self.assertRegex(gpus[0], "GPU 0000:04:00.0")
        self.assertRegex(gpus[1], "GPU 0000:02:00.0")

    def test_D28_what_does_not_fit_a_GPU_is_refused_before_it_is_allocated(self):
        self.refused(2, *CUDA, "--tp", 2, env={"TESTBED_EMULATED_GPU_BYTES": "200000"},
                     says=r"GPU 0000:0[12]:00.0 of host .*rank [01]")

    def test_a_layout_that_cannot_be_proven_is_not_accepted(self):
        self.refused(2, *CUDA, "--tp", 2, "--layout", "ib", says="--layout ib cannot be had on host .*no HCA")
        for layout in ("nvlink", "nvlink-ring", "shm", "socket"):
            self.refused(2, *CUDA, "--tp", 2, "--layout", layout, says="the layout cannot be proven", code=3)


class Choices(Cuda):
    def test_graphs_change_no_token(self):
        on = record(1, *BASE, *CUDA, "--cuda-graphs", "on")
        off = record(1, *BASE, *CUDA, "--cuda-graphs", "off")
        self.assertEqual(on["requests"][0]["ids"], off["requests"][0]["ids"])
        self.assertNotEqual(on["options"]["decode_execution"], off["options"]["decode_execution"])
        self.assertGreater(int(on["options"]["graph_replays"]), 0)
        self.assertEqual(off["options"]["graph_replays"], "0")

    def test_bf16_weights_in_f32_are_refused(self):
        self.refused(1, *CUDA, "--weight-dtype", "bf16", "--compute-dtype", "f32", says="--compute-dtype bf16")

    def test_weights_are_said_to_be_converted(self):
        got = record(1, "--model", os.path.join(FIXTURES, "gguf", "llama_5layers.gguf"), *IDS, "--check", "off", *CUDA,
                     "--compute-dtype", "f32")
        self.assertIn("weights converted: bf16 -> f32", got["labels"])

    def test_sampled_tokens_are_those_of_a_CPU(self):
        sampled = ("--temperature", 0.8, "--seed", 7, "--compute-dtype", "f32")
        ids = [record(2, *BASE, "--device", device, "--tp", 2, *sampled)["requests"][0]["ids"] for device in ("cuda", "cpu")]
        self.assertEqual(ids[0], ids[1])

    def test_logits_are_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "logits.safetensors")
            code, _, err = run(1, *QUICK, *CUDA, "--quiet", "--logits", path)
            self.assertEqual(code, 0, err)
            self.assertGreater(os.path.getsize(path), 0)

    def test_a_prediction_stands_beside_it(self):
        got = record(2, *BASE, *CUDA, "--tp", 2, "--cluster", "dgx-h100")
        self.assertIsNotNone(got["phases"]["decode"]["predicted"])


def counted(got):
    """What depends on the split and not on the device: bytes, FLOPs, payloads."""
    result = {"weights": [], "collectives": []}
    for phase in ("prefill", "decode"):
        part = got["phases"][phase]
        result[phase] = (part["weight_bytes"], part["kv_bytes"], part["flops"], part["steps"])
        result["weights"] += [(d["rank"], d["weight_bytes"], d["kv_bytes"], d["flops"]) for d in part["per_device"]]
        result["collectives"] += sorted((c["op"], c["axis"], c["site"], c["per_step"], c["payload_bytes"])
                                        for c in part["collectives"])
    return result


class Records(Cuda):
    SPLITS = {"tp": (LLAMA, "--tp", 2), "pp": (LLAMA, "--pp", 2), "cp": (LLAMA, "--cp", 2),
              "ep": (model("mixtral"), "--tp", 2, "--ep", 2)}

    def check_split(self, name):
        path, *split = self.SPLITS[name]
        found = {}
        for device in ("cpu", "cuda"):
            with tempfile.TemporaryDirectory() as folder:
                out = os.path.join(folder, "record.json")
                code, _, err = run(2, "--model", path, *IDS, *split, "--device", device, *F32, "--check",
                                   "off", "--warmup", 0, "--repeats", 1, "--quiet", "--json", out)
                self.assertEqual(code, 0, err)
                subprocess.run([sys.executable, "-B", os.path.join(SOURCE, "tests", "e2e", "check_record.py"), out],
                               check=True, timeout=30)
                with open(out, encoding="utf-8") as file:
                    found[device] = strict_json(file.read())
        cpu, cuda = found["cpu"], found["cuda"]
        self.assertEqual(cuda["device"], "cuda")
        self.assertEqual(cuda["requests"][0]["ids"], cpu["requests"][0]["ids"])
        self.assertEqual(counted(cuda), counted(cpu))

    def test_dram_bytes_are_asked_of_cupti(self):
        """The emulation has no driver: the record says what is missing, and all else is as it was."""
        got = record(2, *BASE, *CUDA, "--tp", 2, "--dram-counters")
        self.assertEqual([c["rank"] for c in got["device_counters"]], [0, 1])
        for counters in got["device_counters"]:
            self.assertEqual((counters["dram_read_bytes"], counters["dram_write_bytes"]), (None, None))
            self.assertRegex(counters["why_no_dram"], "libcuda|libcupti|cuCtxGetCurrent|cupti")
        self.assertEqual(got["requests"][0]["ids"], record(2, *BASE, *CUDA, "--tp", 2)["requests"][0]["ids"])
        code, _, err = run(1, *BASE, "--device", "cpu", "--dram-counters")
        self.assertEqual(code, 2, err)
        self.assertIn("--dram-counters is of --device cuda", err)

    def test_tensor_parallel_counts_are_a_CPUs(self):
        self.check_split("tp")

    def test_pipeline_counts_are_a_CPUs(self):
        self.check_split("pp")

    def test_context_parallel_counts_are_a_CPUs(self):
        self.check_split("cp")

    def test_expert_parallel_counts_are_a_CPUs(self):
        self.check_split("ep")


class Disturbed(Cuda):
    def test_D31_a_late_rank_is_named_and_its_wait_is_no_wire_time(self):
        delay_us = 20000
        got = record(2, *BASE, *CUDA, "--tp", 2, "--inject", f"delay:rank=1,us={delay_us},every=1")
        reduces = [c for c in got["phases"]["decode"]["collectives"] if c["op"] == "all_reduce" and c["axis"] == "tp"]
        self.assertTrue(reduces)
        for collective in reduces:
            latest = max(collective["latest"], key=lambda late: late["count"])
            self.assertEqual(latest["rank"], 1)
            self.assertGreater(latest["median_us"], delay_us / 2)
            self.assertLess(collective["wire_us"]["median"], delay_us / 2)

    def test_D32_a_stopped_rank_is_named_within_the_deadline(self):
        deadline_s = 3
        job = f"{os.getpid()}-{time.monotonic_ns()}"
        process = subprocess.Popen(
            [MPIRUN, "90", "2", BIN, *map(str, (*BASE, *CUDA, "--tp", 2, "--repeats", 100000, "--quiet", "--timeout",
                                                deadline_s))],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={**os.environ, "TESTBED_TEST_JOB": job})
        time.sleep(6.0)  # in the middle of the work
        pid = ranks_of(job)[1]
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            err = process.communicate(timeout=60)[1].decode(errors="replace")
        finally:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.assertEqual(process.returncode, 3, err)
        self.assertRegex(err, r"rank(s)? 1 \(")
        self.assertLess(time.monotonic() - began, deadline_s + 15)
        time.sleep(0.5)
        self.assertEqual(ranks_of(job), {})


if __name__ == "__main__":
    unittest.main(verbosity=2)
