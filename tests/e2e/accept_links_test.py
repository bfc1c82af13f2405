"""The stages preflight, device and links of an acceptance: nobody is blamed without a fault, and a fault's own place with one."""
import os
import tempfile
import unittest

from program import read_verdict, run

# Four ranks on two cores take turns: nothing here depends on how fast they are.
QUICK = ("accept", "--device", "cpu", "--quick", "--timeout", 60)
# The cohort alone; what this machine should do is not asked.
PROFILE = """name = "test"
device = "cpu"
description = "whatever machine this is"
tried_on_hardware = true
cohort_tolerance = 0.5
"""


def accepted(ranks, *args, profile=PROFILE):
    """(exit code, stderr, verdict)."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "profile.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(profile)
        code, _, err = run(ranks, *QUICK, "--profile", path, "--output", folder, *args)
        return code, err, read_verdict(folder)


def blamed(verdict):
    return {(blame["kind"], tuple(blame["ranks"])) for case in verdict["cases"] for blame in case["blamed"]}


def case(verdict, name):
    return next(case for case in verdict["cases"] if case["name"] == name)


class Links(unittest.TestCase):
    def test_without_a_fault_nobody_is_blamed(self):
        code, err, verdict = accepted(4, "--stage", "preflight,device,links")
        self.assertEqual(code, 0, err)
        self.assertEqual(blamed(verdict), set())
        self.assertEqual([c["name"] for c in verdict["cases"] if c["stage"] == "preflight"],
                         ["versions", "environment", "devices", "clocks", "memory", "placement"])
        figures = case(verdict, "bandwidth 16 MiB")["figures"]
        pairs = {tuple(f["ranks"]) for f in figures}
        self.assertEqual(pairs, {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)})
        self.assertEqual({f["key"]["figure"] for f in figures}, {"link.one_way_gb_s", "link.both_ways_gb_s"})
        matrix = case(verdict, "latency 8 B")["matrices"][0]["values"]
        self.assertEqual([[value is None for value in row] for row in matrix],
                         [[i == j for j in range(4)] for i in range(4)])
        for name in ("read", "gemm bf16"):
            self.assertEqual([f["ranks"] for f in case(verdict, name)["figures"]], [[0], [1], [2], [3]])

    def test_a_slow_link_is_blamed_and_no_other(self):
        # A failed case is carried out three times: the slow link has few messages, and is no slower than it takes to
        # tell it from the others, which are a dozen times as fast.
        code, err, verdict = accepted(4, "--stage", "links", "--case", "links/bandwidth 16 MiB", "--repeats", 2,
                                      "--inject", "slow-link:rank=1,peer=3,gb_s=0.1")
        self.assertEqual(code, 1, err)
        self.assertEqual(blamed(verdict), {("link", (1, 3))})
        found = case(verdict, "bandwidth 16 MiB")
        self.assertIn("link 1-3", found["reason"])
        # It and a good link of each of its ends were measured once more, one at a time: a matrix of their own.
        self.assertEqual(len(found["matrices"]), 2)
        self.assertIsNotNone(found["matrices"][1]["values"][1][3])

    def test_a_slow_device_is_blamed_and_no_other(self):
        code, err, verdict = accepted(4, "--stage", "device", "--inject", "slow-device:rank=2,factor=4")
        self.assertEqual(code, 1, err)
        self.assertEqual(blamed(verdict), {("device", (2,))})

    def test_one_rank_has_no_links_and_a_size_that_is_not_asked_for_is_no_pass(self):
        code, err, verdict = accepted(1, "--stage", "links")
        self.assertEqual(code, 2, err)
        self.assertEqual({(c["status"], c["reason"]) for c in verdict["cases"]}, {("skipped", "1 rank: no links")})
        code, err, verdict = accepted(2, "--stage", "links", "--max-bytes", 1048576)
        self.assertEqual(case(verdict, "bandwidth 16 MiB")["status"], "skipped")
        self.assertEqual(case(verdict, "bandwidth 1 MiB")["status"], "passed", err)

    def test_what_the_profile_requires_and_this_host_has_not(self):
        code, err, verdict = accepted(2, "--case", "preflight/memory", profile=PROFILE + """
[requires]
dev_shm_gb = 1e9
""")
        self.assertEqual(code, 1, err)
        memory = case(verdict, "memory")
        self.assertEqual(memory["status"], "failed")
        self.assertEqual([b["kind"] for b in memory["blamed"]], ["host"])
        self.assertIn("dev_shm_free_gb", memory["reason"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
