#!/usr/bin/env python3
"""All-reduce between ranks of this host against MPI_Allreduce in both of its settings, in one table; and what it adds to
steps of 500 us of work with more ranks than cores.

  python3 benchmarks/all_reduce.py build/bench_all_reduce [RANKS [ROUNDS]]
"""
import json
import os
import subprocess
import sys
import tempfile

LAUNCHER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts", "mpirun.sh")
SINGLE_COPY = "OMPI_MCA_btl_vader_single_copy_mechanism"
MPI_DEFAULT = "cma"  # what Open MPI takes by itself; MpiWorld would switch it off


def run(program, ranks, options, environment):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        subprocess.run(["bash", LAUNCHER, "300", str(ranks), program, *options, "--json", path], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, **environment})
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def main(program, ranks="2", rounds="31"):
    launches = [run(program, ranks, ["--rounds", rounds], {SINGLE_COPY: setting}) for setting in (MPI_DEFAULT, "none")]
    by_setting = [launch["sizes"] for launch in launches]
    print(f"{ranks} ranks on cores {' | '.join(launches[0]['binding'])}, mpi_yield_when_idle "
          f"{launches[0]['mpi_yield_when_idle']}; load {os.getloadavg()[0]:.1f}; us; ratio MPI / ours, MPI's time the "
          "better of shared and private tensors")
    print(f"{'bytes':>10} {'MPI default':>12} {'ours':>9} {'ratio':>6} {'single copy off':>16} {'ours':>9} {'ratio':>6}")
    for first, second in zip(*by_setting):
        print(f"{first['bytes']:>10} {first['mpi_us']:>12.1f} {first['ours_us']:>9.1f} {first['ratio']:>6.2f}"
              f" {second['mpi_us']:>16.1f} {second['ours_us']:>9.1f} {second['ratio']:>6.2f}")
    for n in (4, 8):
        steps = run(program, n, ["--steps", "--rounds", rounds], {})
        print(f"steps of 500 us of work, {n} ranks on {steps['cores']} cores: ours {steps['overhead']:+.1%}, "
              f"MPI_Allreduce {steps['mpi_overhead']:+.1%}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
