"""The acceptance profiles of GPUs against the measured tables that they are from: what was measured on such GPUs passes."""
import os
import subprocess
import sys
import tempfile
import tomllib
import unittest

SOURCE = os.environ["TESTBED_SOURCE_DIR"]
FOLDER = os.path.join(SOURCE, "configs", "acceptance")
GENERATOR = os.path.join(SOURCE, "benchmarks", "acceptance_profiles.py")
sys.path.insert(0, os.path.dirname(GENERATOR))

from acceptance_profiles import BANDWIDTH_FROM, LATENCY_UP_TO, OPS, bus_factor, nccl_rows, table  # noqa: E402

GPUS = {"h100-nvlink": "h100_sxm", "h100-ndr": "h100_sxm", "a100-nvlink": "a100_sxm", "l40s-pcie": "l40s"}


def expectations(profile, **fields):
    with open(os.path.join(FOLDER, profile + ".toml"), "rb") as file:
        expected = tomllib.load(file)["expect"]
    return [e for e in expected if all(e.get(k) == v for k, v in fields.items())]


def limits(expectation, sign):
    return {size: value * (1 + sign * expectation["tolerance"]) for size, value in expectation["by_bytes"]}


class Profiles(unittest.TestCase):
    def test_they_are_what_the_generator_writes(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-B", GENERATOR, "--folder", folder], check=True)
            self.assertEqual(sorted(os.listdir(folder)), sorted(profile + ".toml" for profile in GPUS))
            for name in os.listdir(folder):
                with open(os.path.join(folder, name), encoding="utf-8") as new, \
                        open(os.path.join(FOLDER, name), encoding="utf-8") as shipped:
                    self.assertEqual(new.read(), shipped.read(), name)

    def test_every_source_of_the_product_that_is_measured_passes(self):
        """GemmRate (runtime/accept/gemm_rate.cpp) takes its widest on these GPUs: the next one is over in less than 2 ms."""
        for profile, gpu in GPUS.items():
            gate, = expectations(profile, figure="device.gemm_tflop_s")
            limit = gate["expected"] * (1 - gate["tolerance"])
            us = {width: [float(r["latency_us"]) for r in table("gemm.csv") if r["gpu"] == gpu and r["dtype"] == "bfloat16"
                          and (r["m"], r["n"], r["k"]) == (str(width),) * 3] for width in (4096, 8192)}
            self.assertLess(min(us[4096]), 2000, profile)
            self.assertEqual(len(us[8192]), 2, profile)
            for each in us[8192]:
                self.assertGreaterEqual(2 * 8192**3 / each * 1e-6, limit, profile)

    def collectives(self):
        """(name, op, n, {bytes: measured us}, profile) of what the tables have of every profile."""
        for profile, gpu in GPUS.items():
            for table_op, op in OPS.items():
                for n in (2, 4, 8):
                    yield f"{profile} {op} {n}", profile, op, n, dict(nccl_rows(gpu, table_op, "half", n)[1])

    def test_times_that_a_larger_payload_undercuts_pass_beside_it(self):
        for name, profile, op, n, us in self.collectives():
            gate, = expectations(profile, figure="collective.us", op=op, ranks=n, scope="within-host")
            limit = limits(gate, 1)
            sizes = sorted(limit)
            self.assertEqual(sizes[-1], LATENCY_UP_TO, name)
            for size in sizes:
                for other in sizes:
                    undercut = 2 * other in limit and us[2 * other] < us[other]
                    if other <= size or (other == 2 * size and undercut):
                        self.assertLessEqual(us[other], limit[size], f"{name}: {other} bytes at the gate of {size}")

    def test_rates_that_a_smaller_payload_exceeds_pass_beside_it(self):
        for name, profile, op, n, us in self.collectives():
            gates = expectations(profile, figure="collective.busbw_gb_s", op=op, ranks=n, scope="within-host")
            gate = next(g for g in gates if g.get("algorithm") != "ring")
            limit = limits(gate, -1)
            rate = {size: bus_factor(op, n) * size / us[size] * 1e-3 for size in limit}
            self.assertEqual(min(limit), BANDWIDTH_FROM, name)
            for size in limit:
                for other in limit:
                    exceeded = other // 2 in limit and rate[other // 2] > rate[other]
                    if other >= size or (other == size // 2 and exceeded):
                        self.assertGreaterEqual(rate[other], limit[size], f"{name}: {other} bytes at the gate of {size}")

    def test_what_was_derived_says_so(self):
        for op in OPS.values():
            for n in (2, 4, 8):
                gate, = expectations("h100-ndr", figure="collective.busbw_gb_s", op=op, ranks=n, scope="between-hosts")
                self.assertTrue(gate["source"].startswith("derived:"), gate)
        for profile in GPUS:
            for gate in expectations(profile, figure="link.one_way_gb_s", scope="within-host"):
                self.assertTrue(gate["source"].startswith("derived:"), gate)


if __name__ == "__main__":
    unittest.main()
