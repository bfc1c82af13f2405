"""What launch/ hands to schedulers and container builders, checked without them: the MPIJob against a schema of the fields of
kubeflow.org/v2beta1 that it may use, the Dockerfile against this checkout."""
import os
import re
import subprocess
import sys
import unittest

try:
    import jsonschema
    import yaml
except ImportError:  # another Python than Debian's
    sys.path.append("/usr/lib/python3/dist-packages")
    import jsonschema
    import yaml

SOURCE = os.environ["TESTBED_SOURCE_DIR"]


def read(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


class Examples(unittest.TestCase):
    def test_an_acceptance_on_GPUs_names_its_profile(self):
        """Without it the program refuses."""
        for path in (("launch", "testbed-mpirun.sh"), ("launch", "container", "Dockerfile"), ("launch", "slurm", "testbed.sbatch"),
                     ("docs", "launching.md")):
            shown = re.findall(r"(?:testbed-mpirun\.sh|docker run|testbed\.sbatch|e\.g\.)[^|\n`]* accept\b.*", read(*path))
            self.assertTrue(shown, path)
            for line in shown:
                self.assertIn("--profile", line)


def closed(required=(), **properties):
    """An object of these properties and no others: the API server drops a field that it does not know."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def array(items):
    return {"type": "array", "items": items, "minItems": 1}


TEXT = {"type": "string", "minLength": 1}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
QUANTITY = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi|Ti|k|M|G|T)?$"}]}
LABELS = {"type": "object", "additionalProperties": TEXT}
RESOURCES = {"type": "object", "additionalProperties": QUANTITY}
CONTAINER = closed(
    ("name", "image", "command", "resources"), name=NAME, image=TEXT, command=array(TEXT), args=array(TEXT),
    env=array(closed(("name", "value"), name=TEXT, value=TEXT)),
    readinessProbe=closed(tcpSocket=closed(("port",), port={"type": "integer"}), periodSeconds={"type": "integer", "minimum": 1}),
    securityContext=closed(capabilities=closed(add=array(TEXT))), resources=closed(("limits",), requests=RESOURCES, limits=RESOURCES),
    volumeMounts=array(closed(("name", "mountPath"), name=NAME, mountPath={"type": "string", "pattern": "^/"})))
VOLUME = {
    **closed(("name",), name=NAME, emptyDir=closed(medium={"enum": ["", "Memory"]}, sizeLimit=QUANTITY),
             persistentVolumeClaim=closed(("claimName",), claimName=NAME)),
    "oneOf": [{"required": ["emptyDir"]}, {"required": ["persistentVolumeClaim"]}]}
ANTI_AFFINITY = closed(requiredDuringSchedulingIgnoredDuringExecution=array(
    closed(("topologyKey",), labelSelector=closed(matchLabels=LABELS), topologyKey=TEXT)))
POD = closed(("containers",), containers=array(CONTAINER), volumes=array(VOLUME),
             affinity=closed(podAntiAffinity=ANTI_AFFINITY))
REPLICAS = closed(("replicas", "template"), replicas={"type": "integer", "minimum": 1}, restartPolicy={"enum": ["Never", "OnFailure"]},
                  template=closed(("spec",), metadata=closed(labels=LABELS), spec=POD))
MPI_JOB = closed(
    ("apiVersion", "kind", "metadata", "spec"), apiVersion={"const": "kubeflow.org/v2beta1"}, kind={"const": "MPIJob"},
    metadata=closed(("name",), name=NAME, namespace=NAME, labels=LABELS),
    spec=closed(("mpiReplicaSpecs",), slotsPerWorker={"type": "integer", "minimum": 1},
                mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]}, sshAuthMountPath={"type": "string", "pattern": "^/"},
                launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]},
                runPolicy=closed(backoffLimit={"type": "integer", "minimum": 0}, cleanPodPolicy={"enum": ["None", "Running", "All"]},
                                 activeDeadlineSeconds={"type": "integer", "minimum": 1},
                                 ttlSecondsAfterFinished={"type": "integer", "minimum": 0}, suspend={"type": "boolean"}),
                mpiReplicaSpecs=closed(("Launcher", "Worker"), Launcher=REPLICAS, Worker=REPLICAS)))


class UniqueKeys(yaml.SafeLoader):
    """YAML takes the last of two equal keys; here that is a mistake."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is given twice at {node.start_mark}"
        return super().construct_mapping(node, deep)


class Kubernetes(unittest.TestCase):
    def setUp(self):
        self.job = yaml.load(read("launch", "kubernetes", "mpijob.yaml"), UniqueKeys)
        self.spec = self.job["spec"]
        self.pods = {name: replicas["template"]["spec"] for name, replicas in self.spec["mpiReplicaSpecs"].items()}

    def test_it_is_an_mpi_job(self):
        jsonschema.Draft7Validator.check_schema(MPI_JOB)
        jsonschema.Draft7Validator(MPI_JOB).validate(self.job)

    def test_the_schema_refuses_what_the_server_would(self):
        for path, value in (("slotsPerWorker", 0), ("cleanPodPolicy", "Running"), ("launcherCreationPolicy", "WhenReady")):
            broken = {**self.job, "spec": {**self.spec, path: value}}
            with self.assertRaises(jsonschema.ValidationError, msg=path):
                jsonschema.Draft7Validator(MPI_JOB).validate(broken)

    def test_a_failed_acceptance_is_not_tried_again_and_leaves_its_logs(self):
        self.assertEqual(self.spec["runPolicy"]["backoffLimit"], 0)
        self.assertEqual(self.spec["runPolicy"]["cleanPodPolicy"], "Running")
        for replicas in self.spec["mpiReplicaSpecs"].values():
            self.assertEqual(replicas["restartPolicy"], "Never")

    def test_the_launcher_waits_until_the_workers_are_ready(self):
        self.assertEqual(self.spec["launcherCreationPolicy"], "WaitForWorkersReady")
        self.assertEqual(self.pods["Worker"]["containers"][0]["readinessProbe"]["tcpSocket"]["port"], 22)
        self.assertTrue(self.spec["sshAuthMountPath"].startswith("/root/"))  # the image's user

    def test_a_worker_has_whole_gpus_one_rank_each_and_enough_shared_memory(self):
        worker = self.pods["Worker"]["containers"][0]
        self.assertEqual(worker["resources"]["requests"], worker["resources"]["limits"])
        gpus = worker["resources"]["limits"]["nvidia.com/gpu"]
        self.assertEqual(gpus, self.spec["slotsPerWorker"])
        args = self.pods["Launcher"]["containers"][0]["args"]
        self.assertEqual(args[args.index("--ranks-per-host") + 1], str(gpus))
        mounts = {mount["mountPath"]: mount["name"] for mount in worker["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in self.pods["Worker"]["volumes"]}
        shared = volumes[mounts["/dev/shm"]]["emptyDir"]
        self.assertEqual(shared["medium"], "Memory")
        self.assertGreaterEqual(int(shared["sizeLimit"].removesuffix("Gi")), 16)
        # Two workers of one job on one node would share its NICs.
        term = self.pods["Worker"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
        self.assertEqual(term["topologyKey"], "kubernetes.io/hostname")
        self.assertEqual(term["labelSelector"]["matchLabels"]["training.kubeflow.org/job-name"], self.job["metadata"]["name"])

    def test_volumes_are_there_and_the_verdict_is_seen_by_the_launcher(self):
        for name, pod in self.pods.items():
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            for mount in pod["containers"][0]["volumeMounts"]:
                self.assertIn(mount["name"], volumes, name)
        args = self.pods["Launcher"]["containers"][0]["args"]
        folder = args[args.index("--output") + 1]
        claims = []  # rank 0, on a worker, writes what the launcher reads
        for pod in self.pods.values():
            mount = next(m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == folder)
            claims.append(next(v for v in pod["volumes"] if v["name"] == mount["name"])["persistentVolumeClaim"])
        self.assertEqual(claims[0], claims[1])

    def test_the_wrapper_takes_the_launcher_s_arguments(self):
        launcher = self.pods["Launcher"]["containers"][0]
        script = os.path.join(SOURCE, os.path.relpath(launcher["command"][0], "/opt/testbed"))
        done = subprocess.run(["bash", script, "--program", "/bin/true", "--dry-run", *launcher["args"]], check=False, text=True,
                              capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ppr:8:node", done.stdout)
        profile = launcher["args"][launcher["args"].index("--profile") + 1]
        self.assertTrue(os.path.exists(os.path.join(SOURCE, "configs", "acceptance", f"{profile}.toml")), profile)
        # The wrapper's limit first: it writes what became of the job, the operator only ends it.
        limit = int(launcher["args"][launcher["args"].index("--limit") + 1])
        self.assertLess(limit, self.spec["runPolicy"]["activeDeadlineSeconds"])


class Container(unittest.TestCase):
    def setUp(self):
        text = re.sub(r"^\s*#.*\n", "", read("launch", "container", "Dockerfile"), flags=re.MULTILINE)
        self.steps = [line.split(None, 1) for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]

    def arguments(self, instruction):
        return [rest for name, rest in self.steps if name == instruction]

    def test_every_instruction_is_docker_s(self):
        known = {"ARG", "FROM", "SHELL", "WORKDIR", "COPY", "RUN", "ENV", "ENTRYPOINT", "CMD"}
        self.assertEqual({name for name, _ in self.steps} - known, set())
        first = next(name for name, _ in self.steps if name != "ARG")
        self.assertEqual(first, "FROM")

    def test_every_source_is_there(self):
        stages = [words[-1] for words in map(str.split, self.arguments("FROM")) if len(words) == 3]
        n_of_checkout = 0
        for copy in self.arguments("COPY"):
            stage = re.match(r"--from=(\S+)\s", copy)
            if stage:
                self.assertIn(stage.group(1), stages)
                continue
            for source in copy.split()[:-1]:
                self.assertTrue(os.path.exists(os.path.join(SOURCE, source)), source)
                n_of_checkout += 1
        self.assertGreater(n_of_checkout, 1)

    def test_packages_are_those_of_install_deps_and_ssh(self):
        runs = " && ".join(self.arguments("RUN"))
        self.assertIn("bash launch/install_deps.sh --run-only", runs)
        installed = re.findall(r"apt-get install ([^&]*)", runs)
        self.assertEqual([[word for word in line.split() if not word.startswith("-")] for line in installed],
                         [["openssh-client", "openssh-server"]])
        # What the entry needs beside the program.
        deps = read("launch", "install_deps.sh")
        always = re.search(r"^packages=\((.*?)^\)", deps, re.MULTILINE | re.DOTALL).group(1)
        for package in ("openmpi-bin", "iproute2", "python3", "cmake", "ninja-build"):
            self.assertIn(package, re.sub("#.*", "", always).split())

    def test_it_is_the_base_of_tests_and_enters_the_wrapper(self):
        self.assertIn("debian:bookworm-slim", self.arguments("FROM"))
        (entry,) = self.arguments("ENTRYPOINT")
        path = re.fullmatch(r'\["/opt/testbed/(\S+)"\]', entry).group(1)
        self.assertTrue(os.access(os.path.join(SOURCE, path), os.X_OK))
        self.assertEqual(self.arguments("WORKDIR"), ["/opt/testbed"])
        preset = re.search(r"cmake --preset (\w+)", " ".join(self.arguments("RUN"))).group(1)
        self.assertIn(f'"name": "{preset}"', read("CMakePresets.json"))


class Slurm(unittest.TestCase):
    def test_the_job_is_of_whole_nodes_and_ends_with_its_first_failure(self):
        text = read("launch", "slurm", "testbed.sbatch")
        options = set(re.findall(r"^#SBATCH (\S+)", text, re.MULTILINE))
        for option in ("--exclusive", "--mem=0", "--ntasks-per-node=8", "--no-requeue"):
            self.assertIn(option, options)
        self.assertRegex(text, r"(?m)^srun --mpi=pmix --kill-on-bad-exit=1 ")
        # Slurm stops reading options at the first command.
        self.assertLess(text.rindex("#SBATCH"), text.index("set -uo pipefail"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
