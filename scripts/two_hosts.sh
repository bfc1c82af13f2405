#!/usr/bin/env bash
# Two hosts on this machine, joined by one real link, and one Open MPI job over both.
#   bash scripts/two_hosts.sh RATE [RANKS_PER_HOST] COMMAND...      RATE: unshaped 10gbit 1gbit 100mbit 10mbit
#   bash scripts/two_hosts.sh --check                               whether this machine can; else says why not
# A host is a network namespace with its own name, mounts and half of the cores; the link is a veth pair, shaped both ways.
# Exit code: mpirun's; 2 for a mistake here, 1 from --check. Nothing is left behind, however it ends: all runs in a PID
# namespace that dies with this process. How much crossed the link is told on standard error.
set -euo pipefail

rates=(unshaped 10gbit 1gbit 100mbit 10mbit)
# Bytes that tbf lets pass at once after a pause: as few as let large messages reach the rate, since small ones hide in them.
declare -A bursts=([10gbit]=8kb [1gbit]=8kb [100mbit]=3kb [10mbit]=1600)
subnet=10.77.0 # inside the two namespaces only
self=$(realpath "${BASH_SOURCE[0]}")

refuse() {
  echo "two_hosts: $1" >&2
  exit "${2:-2}"
}

# In the network of host $1 (a or b), whose namespaces its holder process has.
on_host() {
  local holder=holder_$1
  shift
  nsenter --target "${!holder}" --net "$@"
}

check() {
  local tool
  [ "$(id -u)" -eq 0 ] || refuse "needs root" 1
  for tool in ip tc unshare nsenter setpriv taskset; do
    command -v "$tool" >/dev/null || refuse "needs $tool (iproute2, util-linux)" 1
  done
  unshare --net --uts --mount --pid --fork ip link add v0 type veth peer name v1 2>/dev/null ||
    refuse "this machine lets root make no network namespace with a veth pair" 1
  unshare --net bash -c "tc qdisc add dev lo root tbf rate 1gbit burst 8kb latency 20ms" 2>/dev/null ||
    refuse "this kernel has no tbf to shape a link with" 1
}

# The outer half: the inner one in a PID namespace of its own, which the kernel ends with this process, killed or not.
outer() {
  if [ "${1:-}" = --check ]; then
    check
    exit 0
  fi
  local ranks=1
  [ $# -ge 2 ] || refuse "usage: scripts/two_hosts.sh RATE [RANKS_PER_HOST] COMMAND... (RATE: ${rates[*]})"
  local rate=$1
  shift
  [[ " ${rates[*]} " == *" $rate "* ]] || refuse "unknown rate $rate (known: ${rates[*]})"
  if [[ $1 =~ ^[1-9][0-9]*$ ]]; then
    ranks=$1
    shift
  fi
  [ $# -ge 1 ] || refuse "no command"
  (check) || exit 2
  local inner code=0
  setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc \
    bash "$self" --inner "$rate" "$ranks" "$@" </dev/null &
  inner=$!
  trap 'kill -KILL $inner 2>/dev/null || true; wait $inner 2>/dev/null || true; exit 143' TERM INT HUP
  wait "$inner" || code=$?
  exit "$code"
}

# Half of the cores that this process may use; both hosts share the one if there is no second.
cores_of() {
  python3 -c "
import os
cores = sorted(os.sched_getaffinity(0))
half = len(cores) // 2
mine = cores if not half else cores[:half] if '$1' == 'a' else cores[half:]
print(','.join(map(str, mine)))"
}

# A process that holds a host's namespaces; prints its id. /dev/shm is the host's own: nothing is shared but files.
start_host() {
  unshare --net --uts --mount --ipc bash -c \
    "hostname host-$1 && mount -t tmpfs tmpfs /dev/shm && ip link set lo up && exec sleep infinity" >/dev/null &
  local holder=$!
  until [ "$(cat /proc/$holder/comm 2>/dev/null)" = sleep ]; do
    [ -d /proc/$holder ] || refuse "host-$1 did not start" 3
    sleep 0.01
  done
  echo $holder
}

join_hosts() {
  local host
  ip link add v0 netns "$holder_a" type veth peer name v0 netns "$holder_b"
  for host in a b; do
    on_host $host ip address add "$subnet.$([ $host = a ] && echo 1 || echo 2)/24" dev v0
    on_host $host ip link set v0 up
    [ "$1" = unshaped ] || on_host $host tc qdisc add dev v0 root tbf rate "$1" burst "${bursts[$1]}" latency 20ms
  done
}

sent_by() { on_host "$1" awk '$1 == "v0:" { print $10 }' /proc/net/dev; }

# Open MPI's remote shell: HOST COMMAND..., on that host's cores.
agent() {
  local host=TWO_HOSTS_A
  [ "$1" = $subnet.1 ] || host=TWO_HOSTS_B
  shift
  local holder cores
  read -r holder cores <<<"${!host}"
  exec nsenter --target "$holder" --net --uts --mount --ipc taskset -c "$cores" bash -c "$*"
}

inner() {
  local rate=$1 ranks=$2 code=0 settings=()
  shift 2
  holder_a=$(start_host a)
  holder_b=$(start_host b)
  join_hosts "$rate"
  TWO_HOSTS_A="$holder_a $(cores_of a)" TWO_HOSTS_B="$holder_b $(cores_of b)"
  export TWO_HOSTS_A TWO_HOSTS_B # for the agent
  # A slot is claimed for each rank, so Open MPI sees no oversubscription and would let waiting ranks spin.
  [ "$((2 * ranks))" -le "$(nproc)" ] || settings+=(--mca mpi_yield_when_idle 1)
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 HWLOC_COMPONENTS="${HWLOC_COMPONENTS:--gl}"
  # btl_tcp_flags 1 (send only): with it large messages reach the line rate, without it half.
  (agent $subnet.1 "$(printf '%q ' exec mpirun --mca plm rsh --mca plm_rsh_agent "bash $self --agent" \
    --mca plm_rsh_no_tree_spawn 1 --mca orte_tmpdir_base /dev/shm --mca oob_tcp_if_include $subnet.0/24 \
    --mca btl_tcp_if_include $subnet.0/24 --mca btl vader,tcp,self --mca btl_tcp_flags 1 "${settings[@]}" \
    --host "$subnet.1:$ranks,$subnet.2:$ranks" -n $((2 * ranks)) --map-by slot --bind-to none "$@")") || code=$?
  echo "two_hosts: $rate link: host-a sent $(sent_by a) bytes, host-b $(sent_by b)" >&2
  exit "$code"
}

case ${1:-} in
  --inner) inner "${@:2}" ;;
  --agent) agent "${@:2}" ;;
  *) outer "$@" ;;
esac
