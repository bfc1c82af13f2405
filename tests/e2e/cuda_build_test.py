"""What was built for GPUs: libraries, device code, flags; and how it behaves on a machine without a driver."""
import json
import os
import re
import shlex
import struct
import subprocess
import tempfile
import unittest

import program

ARCHITECTURES = os.environ.get("TESTBED_CUDA_ARCHITECTURES", "")  # "80-real,90-real,100-real"
BUILD = os.path.dirname(program.BIN)
HAS_DRIVER = os.path.exists("/dev/nvidiactl")


def sections(data):
    """{name: bytes} of a little-endian ELF64 file."""
    assert data[:6] == b"\x7fELF\x02\x01", "no ELF64"
    table, = struct.unpack_from("<Q", data, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", data, 0x3a)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    names = headers[names_at][4]
    found = {}
    for name, _, _, _, offset, n_bytes in headers:
        begin = names + name
        found[data[begin:data.index(b"\0", begin)].decode()] = data[offset:offset + n_bytes]
    return found


FATBIN_MAGIC = 0xba55ed50
PTX, CUBIN = 1, 2


def device_code(fatbins):
    """[(kind, sm)] of a .nv_fatbin section: containers of a 16-byte header (magic, version, header's size, contents'
    size) and entries, each with a header that has its kind, its own and the payload's size, and at byte 28 the
    architecture. (As nvcc 13.0.88 writes them: found by compiling one kernel for three known architectures.)"""
    found, at = [], 0
    while at + 16 <= len(fatbins):
        magic, version, header, n_bytes = struct.unpack_from("<IHHQ", fatbins, at)
        if magic == 0:  # between containers
            at += 8
            continue
        assert (magic, version) == (FATBIN_MAGIC, 1), f"no fat binary at {at}: {magic:#x} version {version}"
        entry, end = at + header, at + header + n_bytes
        while entry < end:
            kind, _, header, payload = struct.unpack_from("<HHIQ", fatbins, entry)
            sm, = struct.unpack_from("<I", fatbins, entry + 28)
            found.append((kind, sm))
            entry += header + payload
        assert entry == end, "a fat binary's entries do not fill it"
        at = end
    return found


class Binary(unittest.TestCase):
    def test_libraries(self):
        text = subprocess.run(["ldd", program.BIN], capture_output=True, text=True, check=True).stdout
        for library in ("libcudart.so", "libcublasLt.so", "libnccl.so"):
            lines = [line for line in text.splitlines() if line.strip().startswith(library)]
            self.assertEqual(len(lines), 1, text)
            self.assertNotIn("not found", lines[0])
        # Part of the driver: a machine without it must start the program.
        for library in ("libcuda.so", "libnvidia-ml.so"):
            self.assertNotIn(library, text)

    def test_device_code(self):
        with open(program.BIN, "rb") as file:
            code = device_code(sections(file.read())[".nv_fatbin"])
        wanted = {int(name.removesuffix("-real")) for name in ARCHITECTURES.split(",")}
        self.assertTrue(wanted)
        self.assertEqual({sm for kind, sm in code if kind == CUBIN}, wanted)
        n_of = {sm: code.count((CUBIN, sm)) for sm in wanted}
        self.assertEqual(len(set(n_of.values())), 1, f"cubins by architecture: {n_of}")
        self.assertEqual([sm for kind, sm in code if kind == PTX], [])  # nothing is compiled on first use


class NoDriver(unittest.TestCase):
    def refusal(self, ranks, *args, launcher=True):
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if HAS_DRIVER else None
        code, out, err = program.run(ranks, *args, "--device", "cuda", launcher=launcher, env=hidden)
        self.assertEqual(code, 2, err)
        self.assertEqual(out, "")
        self.assertNotIn("signal", err)
        # mpirun has lines of its own about exit codes.
        lines = [line for line in err.splitlines() if line.startswith("testbed:") or not launcher]
        self.assertEqual(len(lines), 1, err)
        return lines[0]

    def test_one_line(self):
        run = ("run", "--model", program.model("llama3_gqa"), "--prompt-ids", "1,2", "--gen-tokens", 2)
        for ranks, launcher, args in ((1, False, run), (2, True, (*run, "--tp", 2)), (2, True, ("probe",))):
            with self.subTest(command=args[0], ranks=ranks, launcher=launcher):
                line = self.refusal(ranks, *args, launcher=launcher)
                self.assertRegex(line, r"GPU|NVIDIA driver|CUDA driver")


def compile_command(source):
    """Words of the command that compiled a .cu file of kernels/cuda for the program, without input and output."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        commands = [shlex.split(entry["command"]) for entry in json.load(file) if entry["file"] == source]
    words, = (c for c in commands if any(os.path.basename(word) == "nvcc" for word in c))
    for option in ("-o", "-c", "-MF", "-MT"):
        if option in words:
            at = words.index(option)
            del words[at:at + 2]
    of_architectures = [word for word in words if word.startswith("--generate-code")]
    return [word for word in words if word != "-MD" and word not in of_architectures[1:]]  # one is enough


class Flags(unittest.TestCase):
    SPILLS = "-Xptxas=-warn-spills,-Werror"

    def compiled(self, source, drop=""):
        command = compile_command(os.path.join(program.SOURCE, "kernels", "cuda", "fill.cu"))
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [word for word in command if word != drop] + ["-c", source, "-o", os.path.join(folder, "x.o")],
                capture_output=True, text=True, cwd=BUILD, timeout=280, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_a_kernel_that_spills_is_refused(self):
        source = os.path.join(program.SOURCE, "tests", "e2e", "spilling_kernel.cu")
        code, text = self.compiled(source)
        self.assertNotEqual(code, 0)
        self.assertIn("Registers are spilled to local memory", text)
        code, text = self.compiled(source, drop=self.SPILLS)
        self.assertEqual(code, 0, text)  # nothing else is wrong with it

    def test_warnings_are_errors(self):
        for text in ("__global__ void k(float* x) { int unused = 1; x[0] = 1.0F; }\n",  # of device code
                     "int f(int unused) { return 1; }\n"):  # of host code
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "warns.cu")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                code, said = self.compiled(path)
                self.assertNotEqual(code, 0, text)
                self.assertIn("unused", said)


class Configures(unittest.TestCase):
    def configure(self, *options, env=None):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        done = subprocess.run(
            ["cmake", "-S", program.SOURCE, "-B", folder.name, "-G", "Ninja", "-DTESTBED_TESTS=OFF",
             "-DTESTBED_BENCHMARKS=OFF", *options], capture_output=True, text=True, timeout=200, check=False,
            env={**os.environ, **(env or {})})
        return folder.name, done.returncode, done.stdout + done.stderr


class Nccl(Configures):
    def test_libraries_of_pip_are_found(self):
        """They have no libnccl.so to link."""
        with tempfile.TemporaryDirectory() as home:
            for path in ("include/nccl.h", "lib/libnccl.so.2"):
                os.makedirs(os.path.dirname(os.path.join(home, path)))
                with open(os.path.join(home, path), "w", encoding="utf-8"):
                    pass
            folder, code, text = self.configure(env={"NCCL_HOME": home})
            self.assertEqual(code, 0, text)
            with open(os.path.join(folder, "CMakeCache.txt"), encoding="utf-8") as file:
                found = dict(re.findall(r"^(TESTBED_NCCL_\w+):\w+=(.*)$", file.read(), re.MULTILINE))
            if not found:
                self.skipTest("no nvcc, or not CUDA 13")
            self.assertEqual(found, {"TESTBED_NCCL_INCLUDE": os.path.join(home, "include"),
                                     "TESTBED_NCCL_LIBRARY": os.path.join(home, "lib", "libnccl.so.2")})


class Without(Configures):
    """A build without CUDA. TESTBED_WITHOUT_CUDA: its program."""

    def test_configure(self):
        for options in (("-DTESTBED_CUDA=OFF",), ("-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON",)):
            with self.subTest(options=options):
                folder, code, text = self.configure(*options)
                self.assertEqual(code, 0, text)
                with open(os.path.join(folder, "compile_commands.json"), encoding="utf-8") as file:
                    sources = [entry["file"] for entry in json.load(file)]
                self.assertTrue(any(source.endswith("launch/gpu_absent.cpp") for source in sources))
                self.assertFalse([s for s in sources if s.endswith(".cu") or "launch/cuda/" in s])

    def test_on_needs_cuda(self):
        _, code, text = self.configure("-DTESTBED_CUDA=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON")
        self.assertNotEqual(code, 0)
        self.assertIn("TESTBED_CUDA=ON needs nvcc 13, cuBLASLt and NCCL", text)

    def test_device_cuda_is_refused(self):
        model = ("--model", program.model("llama3_gqa"), "--prompt-ids", "1,2")
        for args in (("run", *model), ("probe",)):
            done = subprocess.run([os.environ["TESTBED_WITHOUT_CUDA"], *args, "--device", "cuda"],
                                  capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn("this build has no CUDA device (-DTESTBED_CUDA=ON builds it)", done.stderr)


if __name__ == "__main__":
    unittest.main()
