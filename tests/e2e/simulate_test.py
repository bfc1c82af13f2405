"""`--device sim`: the headline command, honest labels, predictions of real runs, refusals, and the size it reaches."""
import csv
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

from program import BIN, FAST, SOURCE, model, record, run, strict_json

LLAMA = model("llama3_gqa")
HEADLINE = ("--tp", 8, "--model", "llama3-70b")
HEADLINE_BYTES = 141e9  # 70.6e9 weights in bf16
IDS = ("--prompt-ids", "3,17,101,44,9,2,250", "--prompt-ids", "5,8", "--gen-tokens", 6, "--ignore-eos")
SHORT = ("--prompt-ids", "3,17,101", "--gen-tokens", 3, "--ignore-eos", "--check", "off")
ON_CPU = ("--device", "cpu")
ON_DGX = ("--device", "sim", "--cluster", "dgx-h100")
SHARES = ("weights", "kv", "compute", "interconnect", "wait", "bubble", "overhead")


def host_memory_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("MemTotal:"))


def reported(*args, ranks=1, launcher=False):
    """(stdout, {kind: text}) of a run that writes every kind of file."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {kind: os.path.join(folder, kind) for kind in ("json", "csv", "trace")}
        options = [option for kind, path in paths.items() for option in (f"--{kind}", path)]
        code, out, err = run(ranks, *args, *options, launcher=launcher)
        assert code == 0, err
        files = {}
        for kind, path in paths.items():
            check_file(kind, path)
            with open(path, encoding="utf-8") as file:
                files[kind] = file.read()
        return out, files


def check_file(kind, path):
    checker = {"json": "check_record.py", "csv": "check_csv.py", "trace": "check_trace.py"}[kind]
    done = subprocess.run([sys.executable, "-B", os.path.join(SOURCE, "tests", "e2e", checker), path],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def figures(text):
    """A record's text without what names the machine and the time of the run."""
    document = strict_json(text)
    del document["fingerprint"]
    return json.dumps(document)


class Headline(unittest.TestCase):
    @unittest.skipIf(host_memory_bytes() > HEADLINE_BYTES, "this host would run it")
    def test_one_command_on_any_machine(self):
        out, under_mpirun = reported(*HEADLINE, ranks=8, launcher=True)
        first = out.splitlines()[0]
        self.assertIn("SIMULATED", first)
        self.assertIn("llama3-70b", first)
        self.assertEqual(out.count(first), 1)  # rank 0 alone prints
        self.assertIn("dgx-h100", out)
        for phase in ("PREFILL", "DECODE"):
            self.assertEqual(out.count(phase + ":"), 1)
        got = strict_json(under_mpirun["json"])
        self.assertEqual((got["device"], got["simulated"], got["world_size"], got["layers"]), ("sim", True, 8, 80))
        self.assertEqual(got["options"]["cluster"], "dgx-h100")
        self.check_walls(got)
        alone_out, alone = reported(*HEADLINE)
        self.assertEqual(figures(under_mpirun["json"]), figures(alone["json"]))
        self.assertEqual((out, under_mpirun["csv"], under_mpirun["trace"]), (alone_out, alone["csv"], alone["trace"]))

    def check_walls(self, got):
        """Decode reads an eighth of the weights at no more than the card's rate, and two all-reduces a layer travel."""
        decode = got["phases"]["decode"]
        self.assertEqual(decode["bound_by"], "memory")
        d_model, compute_bytes = 8192, 2
        for layer in decode["layers"]:
            self.assertEqual(layer["all_reduce_payload_bytes"], 2 * d_model * compute_bytes)
        for device in decode["per_device"]:
            self.assertGreaterEqual(device["step_ms"], 1e3 * device["weight_bytes"] / 3.35e12)

    def test_a_model_that_fits_runs_on_the_processor(self):
        got = record(2, "--tp", 2, "--model", LLAMA, *SHORT)
        self.assertEqual((got["device"], got["simulated"]), ("cpu", False))


class Labels(unittest.TestCase):
    def test_that_routing_is_drawn(self):
        for name, label in (("mixtral", "token ids and experts are drawn, not computed: experts uniformly"),
                            ("llama3_gqa", "token ids are drawn, not computed")):
            got = record(1, "--device", "sim", "--model", model(name), "--prompt-ids", "1,2", "--gen-tokens", 2)
            self.assertIn(label, got["labels"])

    def test_every_output_says_simulated(self):
        out, files = reported(*ON_DGX, "--tp", 2, "--pp", 2, "--model", LLAMA, *IDS)
        self.assertTrue(out.startswith("SIMULATED: "), out[:80])
        got = strict_json(files["json"])
        self.assertIs(got["simulated"], True)
        self.assertIsNone(got["instrument_overhead"])  # virtual stamps cost nothing
        self.assertTrue(got["labels"][0].startswith("SIMULATED on dgx-h100"), got["labels"])
        self.assertEqual({line["simulated"] for line in csv.DictReader(io.StringIO(files["csv"]))}, {"true"})
        self.assertIs(strict_json(files["trace"])["otherData"]["simulated"], True)

    def test_no_output_of_a_real_run_does(self):
        out, files = reported(*ON_CPU, "--tp", 2, "--model", LLAMA, *SHORT, *FAST[:4], ranks=2, launcher=True)
        self.assertNotIn("SIMULATED", out)
        got = strict_json(files["json"])
        self.assertIs(got["simulated"], False)
        self.assertIsNotNone(got["instrument_overhead"])
        self.assertEqual({line["simulated"] for line in csv.DictReader(io.StringIO(files["csv"]))}, {"false"})
        self.assertIs(strict_json(files["trace"])["otherData"]["simulated"], False)

    def test_D24_two_simulations_are_identical(self):
        args = ("--device", "sim", "--cluster", "h100-ndr", "--model", LLAMA, "--tp", 2, "--pp", 2, "--dp", 3,
                "--batch", 6, "--prompt-tokens", 20, "--gen-tokens", 5)
        (out, files), (again_out, again) = reported(*args), reported(*args)
        self.assertEqual(out, again_out)
        self.assertEqual(figures(files["json"]), figures(again["json"]))
        self.assertEqual((files["csv"], files["trace"]), (again["csv"], again["trace"]))

    def test_D29_algorithm_bandwidth_and_placement_are_named(self):
        common = ("--device", "sim", "--model", "llama3-70b", "--layers", 4, "--gen-tokens", 2, "--cluster", "h100-ndr")
        inside = record(1, *common, "--tp", 8, "--pp", 2)
        across = record(1, *common, "--tp", 16)
        self.assertEqual(warnings(inside), [])
        warning, = warnings(across)
        self.assertIn("tp 16 crosses nodes", warning)
        for got, transport in ((inside, "nvlink4"), (across, "ndr-ib")):
            self.assertIn("rank r sits on device r mod 8 of node r / 8", got["labels"])
            self.assertEqual([d["host"] for d in got["phases"]["decode"]["per_device"]], ["node0"] * 8 + ["node1"] * 8)
            reduce = next(c for c in got["phases"]["prefill"]["collectives"] if c["site"] == "mlp")
            self.assertIn(transport, reduce["transport"])
            n = reduce["n"]
            self.assertAlmostEqual(reduce["busbw_gb_s"], reduce["algbw_gb_s"] * 2 * (n - 1) / n)
            self.assertNotEqual(reduce["algorithm"], "")
        transfer = next(c for c in inside["phases"]["prefill"]["collectives"] if c["site"] == "pipeline")
        self.assertIn("ndr-ib", transfer["transport"])


def warnings(got):
    return [label for label in got["labels"] if label.startswith("warning")]


class Predicted(unittest.TestCase):
    def test_a_real_run_is_held_against_a_cluster(self):
        """The simulator opens after the timed passes; MPI must still bring all ranks to their end."""
        real = record(4, *ON_CPU, "--tp", 2, "--dp", 2, "--cluster", "h100-pcie-8", "--model", LLAMA, *IDS)
        simulated = record(1, "--device", "sim", "--cluster", "h100-pcie-8", "--tp", 2, "--dp", 2, "--model", LLAMA,
                           *IDS)
        self.assertIs(real["simulated"], False)
        for name, phase in real["phases"].items():
            expected = simulated["phases"][name]
            self.assertEqual(phase["predicted"]["cluster"], "h100-pcie-8")
            self.assertEqual(phase["predicted"]["step_ms"], expected["step_ms"])
            self.assertEqual(phase["predicted"]["shares"], expected["shares"])
            self.assertAlmostEqual(sum(phase["predicted"]["shares"][part] for part in SHARES), 1.0, places=9)
            self.assertNotEqual(phase["step_ms"], phase["predicted"]["step_ms"])

    def test_what_cannot_be_predicted_leaves_the_measurement(self):
        got = record(2, *ON_CPU, "--tp", 2, "--cluster", "dgx-h100", "--temperature", 0.7, "--model", LLAMA, *SHORT)
        self.assertEqual({phase["predicted"] for phase in got["phases"].values()}, {None})
        label, = [label for label in got["labels"] if label.startswith("not predicted")]
        self.assertIn("--temperature", label)

    def test_without_a_cluster_nothing_is_predicted(self):
        got = record(2, *ON_CPU, "--tp", 2, "--model", LLAMA, *SHORT)
        self.assertEqual({phase["predicted"] for phase in got["phases"].values()}, {None})


class Refused(unittest.TestCase):
    def refused(self, *args, says, launcher=False, ranks=1, **kw):
        code, out, err = run(ranks, *args, launcher=launcher, **kw)
        lines = err.splitlines()
        if launcher:  # mpirun has its own to say
            lines = [line for line in lines if line.startswith("testbed:")]
        self.assertEqual(code, 2, err)
        self.assertEqual(out, "")
        self.assertEqual(len(lines), 1, err)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, lines[0])

    def test_D17_ranks_that_the_degrees_do_not_use(self):
        self.refused(*ON_DGX, *HEADLINE, ranks=4, launcher=True, says="4 ranks \u2260 tp 8")
        # A simulation needs no other process: one of a job of several may run it.
        code, _, err = run(1, *ON_DGX, "--tp", 2, "--model", LLAMA, *SHORT, launcher=False, env={"SLURM_NTASKS": "4"})
        self.assertEqual(code, 0, err)

    def test_D28_what_does_not_fit_names_the_rank_and_what_would(self):
        self.refused(*ON_DGX, "--model", "llama3-70b", says=["does not fit", "rank 0", "--tp 2 --pp 1 would fit"])
        self.refused("--device", "sim", "--cluster", "dgx-p100", *HEADLINE,
                     says=["does not fit", "16.0 GiB are free", "the largest is rank 0: weights 16.4"])

    def test_D29_more_devices_than_the_cluster_has(self):
        self.refused(*ON_DGX, "--tp", 8, "--pp", 2, "--model", "llama3-70b", says="= 16 devices, and dgx-h100 has 8")

    def test_a_cluster_that_is_not_there_is_refused_before_a_real_run(self):
        self.refused(*ON_CPU, "--tp", 2, "--cluster", "dgx-x", "--model", LLAMA, "--prompt-tokens", 16, "--gen-tokens",
                     200, "--repeats", 100000, ranks=2, launcher=True, limit_s=20, says='no preset "dgx-x"')

    def test_a_real_run_has_no_links_to_set(self):
        for args in (("--algorithm", "ring"), ("--link-us", 5), ("--link-gb-s", 100)):
            with self.subTest(args=args):
                self.refused(*ON_CPU, "--model", LLAMA, *SHORT, *args, says=["simulated cluster", "give --cluster"])

    def test_what_a_simulation_cannot_do(self):
        for args, says in ((("--temperature", 0.5), "no logits"), (("--logits", "/tmp/x"), "--logits"),
                           (("--algorithm", "fastest"), "is not one of"), (("--cluster", "dgx-x"), "dgx-x"),
                           (("--tp", 3), "8 heads do not divide by 3"), (("--json", "/nowhere/x"), "/nowhere/x"),
                           (("--tp", 2, "--inject", "delay:rank=2,us=10"), "there are ranks 0 to 1"),
                           (("--cluster", "l40s-8", "--tp", 2, "--algorithm", "nvls"), "can do ring")):
            with self.subTest(args=args):
                self.refused("--device", "sim", "--model", LLAMA, *SHORT, *args, says=says)


class Size(unittest.TestCase):
    LIMIT_KIB = 4 * 1024 * 1024

    def simulate(self, *args):
        """(record, peak KiB, seconds) of one process."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "record.json")
            began = time.monotonic()
            process = subprocess.Popen([BIN, *map(str, args), "--quiet", "--json", path])
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            with open(path, encoding="utf-8") as file:
                return strict_json(file.read()), usage.ru_maxrss, time.monotonic() - began

    def test_1024_devices(self):
        """One step; replicas share no link, so that of one alone is as long, and its work a replica's share."""
        for split, replicas, microbatches in ((("--tp", 8), 128, 1), (("--tp", 8, "--pp", 16), 8, 16)):
            with self.subTest(split=split, replicas=replicas):
                common = ("--device", "sim", "--cluster", "h100-ndr-128", "--model", "llama3-70b", *split, "--context",
                          1024, "--gen-tokens", 2)
                got, peak_kib, seconds = self.simulate(*common, "--dp", replicas, "--batch", replicas * microbatches)
                print(f"{split} dp {replicas}: {seconds:.1f} s, {peak_kib / 2**20:.2f} GiB", file=sys.stderr)
                self.assertLess(peak_kib, self.LIMIT_KIB)
                self.assertEqual(got["world_size"], 1024)
                decode = got["phases"]["decode"]
                self.assertEqual(decode["steps"], 1)
                self.assertEqual({d["host"] for d in decode["per_device"]}, {f"node{i}" for i in range(128)})
                one = record(1, *common, "--batch", microbatches)["phases"]["decode"]
                self.assertAlmostEqual(decode["step_ms"], one["step_ms"], places=9)
                for field in ("flops", "kv_bytes", "kv_write_bytes"):
                    self.assertEqual(decode[field], replicas * one[field])


if __name__ == "__main__":
    unittest.main(verbosity=2)
