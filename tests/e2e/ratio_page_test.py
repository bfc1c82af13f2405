"""Rows, verdicts and command of docs/performance.md (benchmarks/performance.py), without measuring anything."""
import argparse
import contextlib
import io
import json
import os
import struct
import sys
import tempfile
import unittest
from unittest import mock

SOURCE = os.environ["TESTBED_SOURCE_DIR"]
sys.path.insert(0, os.path.join(SOURCE, "benchmarks"))

import collective_ratios  # noqa: E402
import engine_ratios  # noqa: E402
import kernel_ratios  # noqa: E402
import performance  # noqa: E402
import start_up  # noqa: E402
from ratio_page import Row  # noqa: E402


def all_reduces(setting_us):
    """A launch of bench_all_reduce: {bytes: (ours, MPI's)} in us."""
    return {"sizes": [{"bytes": n, "ours_us": ours, "mpi_us": mpi, "ratio": mpi / ours, "mpi_memory": "private"}
                      for n, (ours, mpi) in setting_us.items()]}


class Rows(unittest.TestCase):
    def test_a_row_of_several_cases_is_held_by_the_worst(self):
        row = Row.of_worst("x", {"a": [3.0, 3.2, 9.0], "b": [1.4, 1.5, 8.0]}, 2, 3, note="avx2")
        self.assertEqual((row.median, row.verdict(), row.misses_floor()), (1.5, "BELOW FLOOR", True))
        self.assertEqual(row.note, "avx2. worst: b; all: a 3.20; b 1.50")
        self.assertEqual(Row.of_worst("x", {"a": [0.1], "b": [0.3]}, 0.2, at_most=True).verdict(), "ABOVE CEILING")
        self.assertEqual(Row.of_worst("x", {"a": [2.5]}, 2, 3).note, "a 2.50")
        self.assertTrue(Row.of_worst("x", {}, 2, 3).misses_floor())

    def test_what_a_processor_cannot_have_is_listed_and_no_miss(self):
        row = Row("bf16", [], 0.9, not_held="no such instructions")
        self.assertFalse(row.misses_floor())
        self.assertEqual(row.verdict(), "not held: no such instructions")
        page = "\n".join(performance.floors([row, Row("y", [0.5], 0.9), Row("z", [1.0], 0.9)], ["avx2"]))
        self.assertIn("**1 of 2 floors reached.** Missed: y.", page)
        self.assertIn("Not measured: bf16 (no such instructions).", page)
        self.assertIn("no AVX-512", page)
        self.assertNotIn("no AVX-512", "\n".join(performance.floors([Row("y", [0.5], 0.9)], ["avx512f"])))

    def test_kernels_name_their_instructions_and_lack_what_the_processor_lacks(self):
        result = {"isa": "avx2", "peer": "read loop", "x": "bf16", "weights": "bf16", "m": 1, "k": 8, "threads": 1}
        lesser = {**result, "isa": "portable", "n": 4, "ratios": [0.1]}
        kernels = kernel_ratios.Kernels({"best_isa": "avx2", "results": [
            {**result, "n": 4, "ratios": [1.0, 1.0]}, {**result, "n": 16, "ratios": [0.8, 0.8]}, lesser]})
        bf16 = next(kernels.vector_rows())
        self.assertEqual((bf16.median, bf16.note), (0.8, "avx2. worst: 16x8; all: 4x8 1.00; 16x8 0.80"))
        product = next(kernels.product_rows())
        self.assertEqual(product.verdict(), "not held: this processor has no avx512_bf16")
        self.assertIn("| portable | bf16 | bf16 | 1 x 4 x 8 | 1 | read loop | 0.100 |", kernels.lesser_levels())

    def test_a_size_that_is_slow_is_not_hidden_by_the_others(self):
        mib = 1 << 20
        launches = [all_reduces({mib: (100.0, 150.0), 2 * mib: (100.0, 900.0), 4 * mib: (100.0, 900.0)})] * 2
        row = collective_ratios.all_reduce_row("x", launches, mib, 64 * mib, 2, 3)
        self.assertEqual((row.median, row.verdict()), (1.5, "BELOW FLOOR"))
        self.assertTrue(row.note.startswith("worst: 1 MiB"), row.note)

    def test_a_launch_unlike_the_others_is_named(self):
        mib = 1 << 20
        steady, odd = all_reduces({mib: (100.0, 300.0)}), all_reduces({mib: (250.0, 300.0)})
        self.assertEqual(list(collective_ratios.unsteady({"cma": [steady, steady], "none": [steady]})), [])
        found = list(collective_ratios.unsteady({"cma": [steady, odd], "none": [steady, steady]}))
        self.assertEqual(found, ["launch 2 beside MPI default: ours 250.0 us at 1 MiB, 100.0 us in the others"])


class Commands(unittest.TestCase):
    def arguments(self, *words, environment=None):
        usual = {name: value for name, value in os.environ.items() if name not in performance.NOT_IN_FORCE}
        with mock.patch.object(sys, "argv", ["performance.py", *words]), \
                mock.patch.dict(os.environ, {**usual, **(environment or {})}, clear=True), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                return performance.parse_arguments(), ""
            except SystemExit:
                return None, said.getvalue()

    def test_the_printed_command_is_whole(self):
        args, _ = self.arguments("--quick", "--only", "wall", "--page", "-", "--rounds", "3", "--only=gains")
        self.assertEqual(performance.command_of(args),
                         "python3 benchmarks/performance.py --only wall --only gains --quick --rounds 3")
        args, _ = self.arguments("--build", "/a b")
        self.assertEqual(performance.command_of(args), "python3 benchmarks/performance.py --build '/a b'")

    def test_some_sections_never_overwrite_the_whole_page(self):
        self.assertIn("--page -", self.arguments("--only", "wall")[1])
        self.assertIsInstance(self.arguments("--only", "wall", "--page", "x.md")[0], argparse.Namespace)

    def test_a_forced_instruction_set_is_refused(self):
        self.assertIn("TESTBED_ISA", self.arguments(environment={"TESTBED_ISA": "avx2"})[1])


class Measurements(unittest.TestCase):
    def test_logits_of_the_prompt_and_of_decode_steps_have_their_places(self):
        tensors = {"request0.prompt_logits": ("F32", [3, 2], struct.pack("<6f", 0, 1, 10, 11, 20, 21)),
                   "request0.greedy_ids": ("I32", [3], struct.pack("<3i", 7, 8, 9)),
                   "request0.greedy_logits": ("F32", [3, 2], struct.pack("<6f", 20, 21, 30, 31, 40, 41))}
        header, data = {}, b""
        for name, (dtype, shape, values) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        text = json.dumps(header).encode()
        with tempfile.NamedTemporaryFile() as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
            file.flush()
            logits = engine_ratios.OurLogits(file.name)
            self.assertEqual(logits.forced_ids([4, 5, 6]), [4, 5, 6, 7, 8])
            self.assertEqual([list(logits.row(position, 3)) for position in range(5)],
                             [[0, 1], [10, 11], [20, 21], [30, 31], [40, 41]])

    def test_memory_beyond_the_shard_counts_in_tensors_as_stored(self):
        tensor = start_up.largest_tensor_bytes("q8_0")
        self.assertEqual(tensor, 32000 * 2048 // 32 * 34)
        started = start_up.Start.__new__(start_up.Start)
        started.record = {"memory": [{"rank": 0, "weights_bytes": 100}, {"rank": 1, "weights_bytes": 50}]}
        started.watch = mock.Mock(peaks={0: 100 + start_up.PROCESS_BYTES, 1: 50 + start_up.PROCESS_BYTES + 2 * tensor})
        self.assertEqual(started.excess("q8_0"), 2.0)


if __name__ == "__main__":
    unittest.main()
