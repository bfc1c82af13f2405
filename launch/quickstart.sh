#!/usr/bin/env bash
# From a fresh clone to text from a real model, and to a cluster that is not there: installs what is missing, builds, downloads
# SmolLM2-135M-Instruct and runs it sharded over two or three ranks, then simulates llama3-70b on eight H100.
#   bash launch/quickstart.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/mpi_env.sh
. scripts/mpi_env.sh

# Prints a command as one would type it.
show() {
  local word line='+'
  for word in "$@"; do
    case $word in
      *[!A-Za-z0-9_./:=,-]*) line+=" \"$word\"" ;;
      *) line+=" $word" ;;
    esac
  done
  echo "$line"
}

echo "== 1/5 packages"
show bash launch/install_deps.sh
bash launch/install_deps.sh

echo "== 2/5 build"
show cmake --preset release
cmake --preset release
show cmake --build --preset release --target testbed
cmake --build --preset release --target testbed

echo "== 3/5 model"
show bash scripts/fetch_smollm2.sh
model=$(bash scripts/fetch_smollm2.sh)
echo "$model"

echo "== 4/5 run"
# Its 9 heads split over 3 ranks; with fewer cores than that, over a pipeline of 2, so that ranks do not share cores.
if [ "$(nproc)" -ge 3 ]; then
  ranks=3 split=(--tp 3)
else
  ranks=2 split=(--pp 2)
fi
testbed_mpi_env $ranks
env | grep '^OMPI_' | sort
command=(mpirun -np $ranks build/testbed "${split[@]}" --model "${model#"$PWD"/}"
  --prompt "The capital of France is" --gen-tokens 32)
show "${command[@]}"
"${command[@]}"

echo "== 5/5 a cluster that is not here" # --device sim: also where 141 GB would fit
testbed_mpi_env 8
command=(mpirun -np 8 build/testbed --tp 8 --model llama3-70b --device sim)
show "${command[@]}"
exec "${command[@]}"
