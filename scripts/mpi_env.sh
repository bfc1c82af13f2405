# shellcheck shell=bash
# Sourced: `testbed_mpi_env N` sets what Open MPI needs to start N ranks on this host.
# Values that the caller has already set are kept.

testbed_mpi_env() {
  if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  # Open MPI counts cores, not hardware threads; a request that fits them is bound and placed as ever.
  export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
  # Looking for displays costs seconds where "localhost" does not resolve.
  export HWLOC_COMPONENTS="${HWLOC_COMPONENTS:--gl}"
  if [ "$1" -gt "$(nproc)" ]; then
    # A waiting rank gives its core away.
    export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"
  fi
}
