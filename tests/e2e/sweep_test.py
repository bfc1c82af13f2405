"""`testbed sweep` and `testbed compare`, through the real program and the simulator."""
import csv
import json
import os
import tempfile
import unittest

from program import model, run, strict_json

HEADLINE = ("--model", "llama3-70b", "--tp", "1,2,8,16", "--cluster", "dgx-h100,h100-ndr", "--gen-tokens", 4)
WHAT_IFS = {"free_links", "zero_latency", "infinite_memory", "no_waiting"}
PARTS = ("weights", "kv", "compute", "interconnect", "wait", "bubble", "overhead")


def sweep(*args):
    return run(1, "sweep", *args, launcher=False)


def sweep_json(*args):
    code, out, err = sweep(*args, "--quiet", "--json", "-")
    assert code == 0, err
    return strict_json(out)


def place(point):
    return point["sweep"]["cluster"], point["sweep"]["tp"]


class Sweep(unittest.TestCase):
    def test_headline(self):
        with tempfile.TemporaryDirectory() as folder:
            table = os.path.join(folder, "points.csv")
            code, out, err = sweep(*HEADLINE, "--json", os.path.join(folder, "sweep.json"), "--csv", table)
            self.assertEqual(code, 0, err)
            with open(os.path.join(folder, "sweep.json"), encoding="utf-8") as file:
                result = strict_json(file.read())
            with open(table, newline="", encoding="utf-8") as file:
                lines = list(csv.DictReader(file))
        self.assertTrue(out.startswith("SIMULATED: llama3-70b, 80 layers"), out)
        self.assertLessEqual(max(map(len, out.splitlines())), 100)
        self.check_refusals(result, out)
        self.check_points(result)
        self.check_what_ifs(result)
        self.check_crossovers(result)
        self.check_csv(result, lines)

    def check_refusals(self, result, out):
        """D28: what does not fit says so, with what would; D29: TP across nodes is warned of."""
        reasons = {(r["cluster"], r["tp"]): r["reason"] for r in result["refused"]}
        self.assertEqual(set(reasons), {("dgx-h100", 1), ("dgx-h100", 16), ("h100-ndr", 1)})
        self.assertIn("16 devices", reasons["dgx-h100", 16])
        self.assertIn("fit", reasons["dgx-h100", 1])
        for reason in reasons.values():
            self.assertIn(reason.split()[0], out)
        warnings = {place(p): p["sweep"]["warnings"] for p in result["points"]}
        self.assertIn("crosses nodes", warnings["h100-ndr", 16][0])
        self.assertEqual(warnings["h100-ndr", 8], [])
        self.assertIn("tp 16 crosses nodes", " ".join(out.split()))

    def check_points(self, result):
        self.assertIs(result["simulated"], True)
        self.assertEqual([place(p) for p in result["points"]],
                         [("dgx-h100", 2), ("dgx-h100", 8), ("h100-ndr", 2), ("h100-ndr", 8), ("h100-ndr", 16)])
        for point in result["points"]:
            self.assertIs(point["simulated"], True)
            self.assertEqual(point["parallel"]["tp"], point["sweep"]["tp"])
            for phase in point["phases"].values():
                self.assertAlmostEqual(sum(phase["shares"][part] for part in PARTS), 1.0, places=9)
        two, eight = result["points"][:2]
        # A quarter of the weights per device, and nothing else of them changes: the memory shrinks.
        self.assertLess(memory_ms(eight), 0.3 * memory_ms(two))

    def check_what_ifs(self, result):
        for point, phases in zip(result["points"], result["what_if"], strict=True):
            self.assertEqual(set(phases), set(point["phases"]))
            for name, what_ifs in phases.items():
                self.assertEqual(set(what_ifs), WHAT_IFS)
                now = point["phases"][name]["step_ms"]
                for what_if in what_ifs.values():
                    self.assertAlmostEqual(what_if["speedup"], now / what_if["step_ms"], places=9)
                self.assertGreater(what_ifs["free_links"]["speedup"], 1.0)
                self.assertGreaterEqual(what_ifs["free_links"]["speedup"],
                                        what_ifs["zero_latency"]["speedup"] * (1 - 1e-6))
                self.assertLess(what_ifs["free_links"]["interconnect_ms"], 1e-3 * now)

    def check_crossovers(self, result):
        """Within a node decode reads weights longer than it talks; across nodes it does not, and that is latency."""
        self.assertEqual(set(result["crossover"]), {"dgx-h100", "h100-ndr"})
        self.assertIsNone(result["crossover"]["dgx-h100"]["decode"]["tp"])
        across = result["crossover"]["h100-ndr"]["decode"]
        self.assertEqual((across["tp"], across["cause"]), (16, "latency"))
        self.assertGreater(across["at_tp"]["interconnect_ms"], across["at_tp"]["memory_ms"])
        without = across["at_tp_without_latency"]
        self.assertLessEqual(without["interconnect_ms"], without["memory_ms"])

    def check_csv(self, result, lines):
        self.assertEqual(len(lines), len(result["refused"]) + 2 * len(result["points"]))
        self.assertEqual({line["simulated"] for line in lines}, {"true"})
        decode = {(line["cluster"], int(line["tp_degree"])): line for line in lines if line["phase"] == "decode"}
        for point in result["points"]:
            line = decode[place(point)]
            self.assertEqual(float(line["step_ms"]), point["phases"]["decode"]["step_ms"])
            self.assertAlmostEqual(sum(float(line[f"{part}_ms"]) for part in PARTS), float(line["step_ms"]), places=9)

    def test_two_sweeps_are_identical(self):
        args = ("--model", model("llama3_gqa"), "--weights", "random", "--tp", "1,2", "--pp", 2, "--batch", 2,
                "--prompt-tokens", 16, "--gen-tokens", 3)
        self.assertEqual(sweep_json(*args), sweep_json(*args))

    def test_best_is_on_the_front(self):
        result = sweep_json("--model", "llama3-8b", "--best", "throughput", "--batch", 8, "--gen-tokens", 3)
        found, = result["best"]
        front = found["pareto"]
        self.assertIn(found["best"], front)
        self.assertEqual(found["best"], max(front, key=lambda offer: offer["tokens_per_s_per_device"]))
        self.assertEqual(front, sorted(front, key=lambda offer: offer["tpot_ms"]))
        # The cluster's 8 devices, or a part of which it holds a whole number.
        self.assertEqual({point["world_size"] for point in result["points"]}, {1, 2, 4, 8})
        for point in result["points"]:
            rate = point["sweep"]["tokens_per_s_per_device"]["decode"]
            self.assertLessEqual(rate, found["best"]["tokens_per_s_per_device"])
        self.assertGreaterEqual(len(result["points"]), 8)

    def test_context_and_expert_degrees(self):
        args = ("--model", "mixtral-8x7b", "--layers", 4, "--tp", "2,4", "--cp", "1,2", "--ep", "1,2", "--gen-tokens", 3)
        code, out, err = sweep(*args)
        self.assertEqual(code, 0, err)
        self.assertLessEqual(max(map(len, out.splitlines())), 100)
        self.assertIn("tp pp cp  dp  ep", out)
        result = sweep_json(*args)
        points = {(p["sweep"]["tp"], p["sweep"]["cp"], p["sweep"]["ep"]): p for p in result["points"]}
        self.assertEqual(set(points), {(tp, cp, ep) for tp in (2, 4) for cp in (1, 2) for ep in (1, 2)})
        for (tp, cp, ep), point in points.items():
            degrees = point["parallel"]
            self.assertEqual((degrees["tp"], degrees["cp"], degrees["ep"]), (tp, cp, ep))
            self.assertEqual(point["world_size"], tp * cp)
        # Each series of one cp and ep has crossovers of its own.
        self.assertEqual({(c["cp"], c["ep"]) for c in result["crossovers"]}, {(cp, ep) for cp in (1, 2) for ep in (1, 2)})

    def test_best_searches_expert_groups(self):
        result = sweep_json("--model", "mixtral-8x7b", "--layers", 4, "--best", "tpot", "--batch", 2, "--cp", "1,2",
                            "--gen-tokens", 3)
        splits = {tuple(p["parallel"][axis] for axis in ("tp", "pp", "cp", "dp", "ep")) for p in result["points"]}
        self.assertLessEqual({(8, 1, 1, 1, 1), (8, 1, 1, 1, 8), (4, 1, 2, 1, 8), (2, 1, 1, 2, 4)}, splits)
        self.assertEqual({cp for _, _, cp, _, _ in splits}, {1, 2})

    def test_mistakes_are_one_line(self):
        for args, says in ((("--device", "cpu"), "mpirun fixes the number of ranks"),
                           (("--cluster", "no-such"), "no-such"),
                           (("--tp", 3), "none of the sweep's 1 points can run"),
                           (("--json", "/no/such/folder/x.json"), "/no/such/folder")):
            code, out, err = sweep("--model", "llama3-8b", *args)
            self.assertEqual(code, 2, err)
            self.assertEqual(out, "")
            self.assertEqual(len(err.splitlines()), 1, err)
            self.assertIn(says, err)


class Compare(unittest.TestCase):
    def test_a_sweeps_points_side_by_side(self):
        result = sweep_json("--model", "llama3-8b", "--tp", "2,4", "--gen-tokens", 3)
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for point in result["points"]:
                paths.append(os.path.join(folder, f"tp{point['sweep']['tp']}.json"))
                with open(paths[-1], "w", encoding="utf-8") as file:
                    json.dump(point, file)
            whole = os.path.join(folder, "sweep.json")
            with open(whole, "w", encoding="utf-8") as file:
                json.dump(result, file)
            code, out, err = run(1, "compare", *paths, launcher=False)
            self.assertEqual(code, 0, err)
            self.assertEqual(out.count("SIMULATED "), 4)  # both headings, both labels
            code, out, err = run(1, "compare", *paths, "--json", "-", "--quiet", launcher=False)
            self.assertEqual(code, 0, err)
            self.check_figures(strict_json(out), result)
            code, out, err = run(1, "compare", paths[0], whole, launcher=False)
            self.assertEqual(code, 2)
            self.assertIn("a sweep's", err)

    def check_figures(self, comparison, result):
        groups = {group["title"]: group for group in comparison["groups"]}
        tpot = next(f for f in groups["timing"]["figures"] if f["name"] == "TPOT")
        timings = [point["timing"]["tpot_ms"] for point in result["points"]]
        self.assertEqual([tpot["a"]["value"], tpot["b"]["value"]], timings)
        self.assertEqual(tpot["difference"], "beyond_spread")
        self.assertAlmostEqual(tpot["ratio"], timings[1] / timings[0], places=12)
        split = next(t for t in groups["run"]["texts"] if t["name"] == "split")
        self.assertEqual((split["a"][:4], split["b"][:4]), ("tp 2", "tp 4"))


def memory_ms(point):
    phase = point["phases"]["decode"]
    return (phase["shares"]["weights"] + phase["shares"]["kv"]) * phase["step_ms"]


if __name__ == "__main__":
    unittest.main()
