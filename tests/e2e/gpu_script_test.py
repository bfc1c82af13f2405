"""tests/gpu.sh on a machine that has no GPU: stand-ins for nvidia-smi, mpirun and what is built. Its steps end in time, what
they print is kept as it comes, and parts are called one by one."""
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import program

FIXTURES = """#!/bin/bash
echo "[       OK ] Models/FixturesOnCuda.f32/toy$GTEST_SHARD_INDEX (3 ms)"
echo "[  PASSED  ] of $GTEST_TOTAL_SHARDS"
[ -z "$TESTBED_ALLOW_SHARED_GPU" ] || echo "shared"
"""
SLOW = """#!/bin/bash
echo "begins with $2"
exec sleep 60
"""


class GpuScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for path in ("tests/gpu.sh", "tests/gpu", "scripts/mpirun.sh", "scripts/mpi_env.sh", "launch/install_deps.sh"):
            to = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            (shutil.copytree if os.path.isdir(os.path.join(program.SOURCE, path)) else shutil.copy)(
                os.path.join(program.SOURCE, path), to)
        self.make("bin/nvidia-smi", '#!/bin/bash\necho "NVIDIA H200, 9.0"\n')
        self.make("bin/nproc", "#!/bin/bash\necho 16\n")
        self.make("bin/mpirun", '#!/bin/bash\n[ "$1" = -np ] || exit 9\nshift 2\nexec "$@"\n')
        self.out = os.path.join(self.root, "out")

    def make(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def start(self, *steps, **env):
        path = os.path.join(self.root, "bin") + os.pathsep + os.environ["PATH"]
        return subprocess.Popen(["bash", os.path.join(self.root, "tests", "gpu.sh"), *steps], text=True,
                                env={**os.environ, "PATH": path, "OUT": self.out, **env}, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def run_steps(self, *steps, **env):
        with self.start(*steps, **env) as script:
            text, _ = script.communicate(timeout=100)
        return script.returncode, text

    def printed(self):
        path = os.path.join(self.out, "gpu.txt")
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_steps_have_parts(self):
        code, text = self.run_steps("b16", "e", "c")
        self.assertEqual(code, 1, text)  # nothing is built
        headings = [line.split()[1] for line in text.splitlines() if line.startswith("===== ")]
        self.assertEqual(headings, ["b16a", "b16b", "b16c", "e1", "e2", "c", "minutes", "results"])
        self.assertEqual(self.printed(), text)
        code, text = self.run_steps("b3")
        self.assertEqual(code, 2)
        self.assertIn("unknown step b3", text)

    def test_fewer_processes_share_a_gpu(self):
        self.make("build/fixtures_gpu_test", FIXTURES)
        for step, shards in (("b1", 4), ("b2", 2), ("b4", 1)):
            code, text = self.run_steps(step)
            self.assertEqual(code, 0, text)
            self.assertEqual(text.count(f"of {shards}\n"), shards, text)
            self.assertEqual(text.count("shared\n"), 0 if step == "b1" else shards)
            self.assertIn(f"{shards} passed, 0 failed, 0 skipped", text.splitlines()[-1])

    def test_a_step_ends_in_time_and_says_what_it_did_not_come_to(self):
        self.make("build/testbed", SLOW)
        code, text = self.run_steps("b16b", TESTBED_GPU_STEP_SECONDS="2")
        self.assertEqual(code, 1, text)
        self.assertEqual(text.count("begins with"), 1, text)  # of three
        self.assertEqual(text.count("not begun: the step's time was over"), 4, text)  # as it happens, and in the results
        self.assertIn("0 passed, 3 failed", text.splitlines()[-1])

    def test_what_was_printed_is_there_when_it_is_killed(self):
        self.make("build/testbed", SLOW)
        with self.start("d1") as script:
            give_up = time.monotonic() + 60
            while "begins with --device" not in self.printed() and time.monotonic() < give_up:
                time.sleep(0.05)
            os.killpg(script.pid, signal.SIGKILL)
        self.assertIn("===== d1", self.printed())
        self.assertIn("begins with --device", self.printed())
        self.assertTrue(os.path.exists(os.path.join(self.root, "build", "gpu-report", "d1.txt")))

    def test_packages_that_cannot_be_installed_are_said_and_no_failure(self):
        self.make("bin/dpkg-query", "#!/bin/bash\n[ \"${@: -1}\" = ninja-build ] || echo installed\n")
        self.make("bin/sudo", '#!/bin/bash\nexec "$@"\n')
        self.make("bin/apt-get", "#!/bin/bash\necho 'Temporary failure resolving' >&2\nexit 100\n")
        _, text = self.run_steps("deps")
        self.assertIn("install_deps: not installed (no network?): ninja-build\n", text)
        self.assertIn("Debian packages are not all installed", text.splitlines()[-1])
        self.assertNotIn("FAILED: Debian", text)

    def test_nccl_of_pip_is_found(self):
        self.make("nccl/include/nccl.h", "")
        self.make("nccl/lib/libnccl.so.2", "")
        self.make("cuda/bin/nvcc", "#!/bin/bash\n")
        self.make("bin/dpkg-query", "#!/bin/bash\necho installed\n")
        nccl = os.path.join(self.root, "nccl")
        os.symlink(os.path.join(self.root, "cuda", "bin", "nvcc"), os.path.join(self.root, "bin", "nvcc"))
        _, text = self.run_steps("deps", NCCL_HOME=nccl)
        self.assertRegex(text, rf"passed +1 +{nccl}/include/nccl.h")
        self.assertRegex(text, rf"passed +1 +{nccl}/lib/libnccl.so.2")
        # Its place among Python's packages.
        packages = subprocess.run(["python3", "-c", "import site; print(site.getusersitepackages())"], text=True,
                                  env={**os.environ, "PYTHONUSERBASE": os.path.join(self.root, "user")},
                                  capture_output=True, check=True).stdout.strip()
        os.makedirs(os.path.join(packages, "nvidia"))
        os.symlink(nccl, os.path.join(packages, "nvidia", "nccl"))
        _, text = self.run_steps("deps", PYTHONUSERBASE=os.path.join(self.root, "user"))
        self.assertIn(f"{packages}/nvidia/nccl/lib/libnccl.so.2", text)


if __name__ == "__main__":
    unittest.main()
