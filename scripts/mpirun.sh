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
exec timeout --kill-after=5 "$seconds" mpirun -np "$n_ranks" "$@" </dev/null
