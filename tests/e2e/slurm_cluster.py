"""A Slurm of one node out of Debian's packages, for the tests of this folder: munge, controller and node daemon in a temporary
folder, without systemd and cgroups. All of it dies with the test, in a PID namespace of its own."""
import os
import shutil
import socket
import subprocess
import tempfile
import time

CONFIGURATION = """ClusterName=testbed
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
KillWait=2
TmpFS={folder}
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""

DAEMONS = """
munged --force --key-file={folder}/munge.key --socket={folder}/munge.socket --pid-file={folder}/munge.pid \
  --log-file={folder}/munge.log --seed-file={folder}/munge.seed --num-threads=2 &&
slurmctld -c && slurmd -c && exec sleep infinity
"""
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "unshare", "setpriv")
START_S = 60


def why_not():
    """Why there can be no cluster here; empty if there can."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        return f"no {', '.join(missing)} (launch/install_deps.sh installs them)"
    return "" if os.geteuid() == 0 else "needs root"


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


class Cluster:
    """with Cluster() as cluster: cluster.run("srun", ...), cluster.job(...)"""

    def __enter__(self):
        # Slurm signals a job's processes by their ids in its own namespace. The folder is munge's, too: private.
        self.holder = tempfile.TemporaryDirectory(prefix="testbed-slurm-")
        self.folder = self.holder.name
        values = dict(zip(("controller_port", "node_port"), free_ports(2)), folder=self.folder, cpus=8,
                      host=socket.gethostname().split(".")[0])
        os.makedirs(f"{self.folder}/state")
        os.makedirs(f"{self.folder}/spool")
        with open(f"{self.folder}/munge.key", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(os.urandom(128))
        with open(f"{self.folder}/slurm.conf", "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(**values))
        with open(f"{self.folder}/mpi.conf", "w", encoding="utf-8") as file:
            # Else in /tmp by job number, where a folder of a killed cluster's job of that number makes the launch fail.
            file.write(f"PMIxCliTmpDirBase={self.folder}\n")
        self.environment = {**os.environ, "SLURM_CONF": f"{self.folder}/slurm.conf", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.daemons = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "bash",
             "-c", DAEMONS.format(folder=self.folder)], env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_until_up()
        return self

    def __exit__(self, *_):
        self.daemons.kill()
        self.daemons.wait()
        self.holder.cleanup()

    def wait_until_up(self):
        end = time.monotonic() + START_S
        while "idle" not in self.run("sinfo", "--noheader", "--format=%T")[1]:
            if self.daemons.poll() is not None or time.monotonic() > end:
                logs = self.logs()
                self.__exit__()
                raise RuntimeError(f"Slurm did not start:\n{logs}")
            time.sleep(0.1)

    def logs(self):
        text = ""
        for name in ("munge.log", "slurmctld.log", "slurmd.log"):
            try:
                with open(f"{self.folder}/{name}", encoding="utf-8", errors="replace") as file:
                    text += f"--- {name}\n" + file.read()[-3000:]
            except OSError as error:
                text += f"--- {error}\n"
        return text

    def run(self, *command, env=None, limit_s=60):
        """(exit code, stdout, stderr)"""
        done = subprocess.run([*map(str, command)], env={**self.environment, **(env or {})}, cwd=self.folder, check=False,
                              capture_output=True, text=True, errors="replace", timeout=limit_s, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    def job(self, *command, env=None, limit_s=90):
        """sbatch COMMAND...: (exit code of the job, what it printed)."""
        code, out, err = self.run("sbatch", "--parsable", "--output=%j.out", *command, env=env)
        if code != 0:
            raise RuntimeError(f"sbatch: {err}")
        number, end = out.strip(), time.monotonic() + limit_s
        fields = {}
        while fields.get("JobState") not in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"):
            if time.monotonic() > end:
                raise RuntimeError(f"job {number} did not end: {fields}\n{self.logs()}")
            time.sleep(0.2)
            text = self.run("scontrol", "--oneliner", "show", "job", number)[1]
            fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
        with open(f"{self.folder}/{number}.out", encoding="utf-8", errors="replace") as file:
            return int(fields["ExitCode"].split(":")[0]), file.read()
