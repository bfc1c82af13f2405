#!/usr/bin/env bash
# Starts testbed over one or several hosts with Open MPI's mpirun, one rank per device.
#   launch/testbed-mpirun.sh [options] -- COMMAND ARGS...   e.g.  -- accept --profile h100-nvlink   or   -- run --model llama3-70b --tp 8
#
#   --hosts A,B,...       hosts, the same devices on each; default: what Open MPI finds: a Slurm or PBS allocation, its
#                         default host file, else this host
#   --hostfile F          the same, one host a line
#   --ranks-per-host N    default: this host's GPUs; without GPUs its NUMA nodes
#   --net NET/MASK|IFACE  for MPI's own traffic between hosts; default: the network of the default route
#   --limit S             ends the job after S seconds, whatever it does (default: none)
#   --program P           default: build/testbed of this checkout, the same path on every host
#   --dry-run             prints the mpirun command, and runs nothing
#
# Exit code: the program's, 3 at the limit. Of `accept` the verdict's, if it was finished by then; 3 if there is none. Rank 0, on
# the first host, writes the files: that folder must be seen from here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/verdict.sh
. "$here/verdict.sh"
# shellcheck source=scripts/mpi_env.sh
. "$here/../scripts/mpi_env.sh"

mistake() {
  echo "testbed-mpirun: $1" >&2
  exit 2
}

hosts=() per_host='' net='' limit='' program=$here/../build/testbed dry_run=''
parse_options() {
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
      --dry-run) dry_run=yes && shift && continue ;;
      --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" && exit 0 ;;
      --hosts | --hostfile | --ranks-per-host | --net | --limit | --program) ;;
      *) mistake "unknown option $1 (the program's own stand after --)" ;;
    esac
    [ $# -ge 2 ] || mistake "$1 needs a value"
    case $1 in
      --hosts) IFS=, read -ra hosts <<<"$2" ;;
      --hostfile) mapfile -t hosts < <(sed 's/#.*//' "$2" | awk 'NF { print $1 }') ;;
      --ranks-per-host) per_host=$2 ;;
      --net) net=$2 ;;
      --limit) limit=$2 ;;
      --program) program=$2 ;;
    esac
    shift 2
  done
  [ "${1:-}" = -- ] || mistake "the program's command and options stand after --"
  shift
  [ $# -gt 0 ] || mistake "no command after --"
  command=("$@")
  [[ -z $per_host || $per_host =~ ^[1-9][0-9]*$ ]] || mistake "--ranks-per-host $per_host is no number of ranks"
  [[ -z $limit || $limit =~ ^[1-9][0-9]*$ ]] || mistake "--limit $limit is no number of seconds"
  [ -x "$program" ] || mistake "no program $program (--program)"
}

n_gpus() {
  if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    awk -F, '{ print NF }' <<<"$CUDA_VISIBLE_DEVICES"
  elif command -v nvidia-smi >/dev/null; then
    nvidia-smi --list-gpus | grep -c '^GPU' || true
  else
    echo 0
  fi
}

n_cores() { lscpu --parse=CORE,SOCKET | grep -v '^#' | sort -u | wc -l; }

# Of the default route, as Open MPI wants it: its interface.
default_interface() { ip -4 route show default 2>/dev/null | awk '{ for (i = 1; i < NF; ++i) if ($i == "dev") { print $(i + 1); exit } }'; }

# Where ranks go. Those with a GPU are bound by the program, each near its own: Open MPI would deal NUMA nodes out in turn
# (rank 0 to node 0, rank 1 to node 1, ...), whichever GPU hangs on them.
placement() {
  local gpus numa_nodes
  gpus=$(n_gpus)
  if [ "$gpus" -gt 0 ]; then
    per_host=${per_host:-$gpus}
    options+=(--map-by "ppr:$per_host:node" --bind-to none)
    return
  fi
  numa_nodes=$(find /sys/devices/system/node -maxdepth 1 -name 'node[0-9]*' 2>/dev/null | wc -l)
  [ "$numa_nodes" -gt 0 ] || numa_nodes=1
  per_host=${per_host:-$numa_nodes}
  if [ "$per_host" -eq "$numa_nodes" ] && [ "$(n_cores)" -ge "$per_host" ]; then
    options+=(--map-by "ppr:$per_host:node" --bind-to numa)
  else
    # Several ranks a NUMA node, or fewer cores than ranks: the program deals the cores out.
    options+=(--map-by "ppr:$per_host:node" --bind-to none)
  fi
}

# MPI carries what starts and ends a job, and on CPU ranks the messages between hosts: plain TCP and shared memory, nothing
# that claims the fabric under test (UCX, openib, hcoll).
transports() {
  options+=(--mca pml ob1 --mca btl 'tcp,vader,self' --mca coll_hcoll_enable 0)
  if [ -z "$net" ]; then
    [ ${#hosts[@]} -gt 1 ] || return 0
    net=$(default_interface)
    [ -n "$net" ] || mistake "no default route: name the network between the hosts (--net)"
  fi
  options+=(--mca btl_tcp_if_include "$net" --mca oob_tcp_if_include "$net")
}

# What the ranks of other hosts need of this environment.
forwarded() {
  local name
  while read -r name; do
    options+=(-x "$name")
  done < <(compgen -e | grep -E '^(TESTBED_|NCCL_|CUDA_|LD_LIBRARY_PATH$)')
}

# The processes of this job that are left on this host.
left() {
  local file
  for file in /proc/[0-9]*/environ; do
    { grep -qxz "TESTBED_LAUNCH=$TESTBED_LAUNCH" "$file" && basename "$(dirname "$file")"; } 2>/dev/null || true
  done | grep -vx "$$" || true
}

# Runs mpirun; its code, 3 at the limit. Nothing of it is left on this host; on others Open MPI's daemons end with mpirun.
launch() {
  local code=0 pid='' signalled='' began=$SECONDS
  trap 'signalled=yes; kill -TERM $pid 2>/dev/null || true' TERM INT HUP
  ${limit:+timeout --kill-after=10 "$limit"} mpirun "${options[@]}" "$program" "${command[@]}" &
  pid=$!
  [ -z "$signalled" ] || kill -TERM $pid 2>/dev/null || true # it came before there was one to send it to
  wait $pid || code=$?
  while kill -0 $pid 2>/dev/null; do # the wait was cut short by a signal
    wait $pid || code=$?
  done
  trap - TERM INT HUP
  # mpirun, too, returns 137: of a rank that was killed.
  if [ -n "$limit" ] && [[ $code =~ ^(124|137)$ ]] && [ $((SECONDS - began)) -ge "$limit" ]; then
    echo "testbed-mpirun: ended at the limit of $limit s" >&2
    code=3
  fi
  # shellcheck disable=SC2046
  kill -KILL $(left) 2>/dev/null || true
  return $code
}

main() {
  local options=() folder mark='' code=0
  parse_options "$@"
  placement
  transports
  # More ranks than cores are allowed only where that is what was asked for.
  if [ "$per_host" -gt "$(n_cores)" ]; then
    echo "testbed-mpirun: $per_host ranks a host, and $(n_cores) cores here" >&2
  else
    export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-0}"
  fi
  testbed_mpi_env "$per_host"
  [ ${#hosts[@]} -eq 0 ] || options+=(--host "$(printf "%s:$per_host\n" "${hosts[@]}" | paste -sd,)")
  export TESTBED_LAUNCH=$$.$RANDOM
  forwarded
  if [ -n "$dry_run" ]; then
    printf '%q ' mpirun "${options[@]}" "$program" "${command[@]}"
    echo
    exit 0
  fi
  folder=$(acceptance_folder "${command[@]}")
  [ -z "$folder" ] || mark=$(before_acceptance "$folder") || mistake "cannot write to $folder"
  launch || code=$?
  [ -z "$folder" ] || { verdict_code "$folder" "$mark" $code && code=0 || code=$?; }
  exit "$code"
}

main "$@"
