#!/usr/bin/env bash
# scripts/mpirun.sh SECONDS N PROGRAM ARGS... : N ranks of PROGRAM on this host, killed after SECONDS.
# Exit code: mpirun's; 124 (137 if it had to be killed) when the time was up.
set -euo pipefail
if [ $# -lt 3 ]; then
  echo "usage: scripts/mpirun.sh SECONDS N PROGRAM ARGS..." >&2
  exit 2
fi
# shellcheck source=scripts/mpi_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/mpi_env.sh"
seconds=$1
n_ranks=$2
shift 2
testbed_mpi_env "$n_ranks"

# A session of its own, which Linux gives its share of the cores, before others' where this user may ask for that: a rank that
# waits yields, and beside a process of the same session and priority it would lose its turn to it each time.
first='{ echo -10 >/proc/self/autogroup; } 2>/dev/null; exec mpirun "$@"'
exec timeout --verbose --kill-after=5 "$seconds" setsid bash -c "$first" mpirun -np "$n_ranks" "$@" </dev/null
