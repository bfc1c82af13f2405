#!/usr/bin/env bash
# On a machine with NVIDIA GPUs (one is enough for most of it): builds for them, and runs what only they can show.
#   bash tests/gpu.sh [STEP]...     default: all, in this order
#     deps   what the build needs: Debian packages are installed if they can be, CUDA and NCCL are looked for
#     build  build/, release preset, for this machine's GPUs only; parts: build1 (the program) build2 (tests) build3 (benchmark)
#     a      every kernel against the references of the unit tests; parts: a1 a2, every other test
#     b      all fixture models on 1, 2 and 4 ranks in f32, and presets in bf16; parts: b1 b2 b4, b16a b16b b16c (b16: these)
#     c      each op's bandwidth beside the device's copy, products beside a large product
#     d      parts: d1, probe; d2, llama3-8b with and without graphs, and what the simulator predicts from the probe
#     e      layouts: each proven or refused; parts: e1 e2
# No part takes longer than TESTBED_GPU_STEP_SECONDS (570): what it has not come to then counts as failed, and of a build
# the next call goes on. Parts may be called one by one. With fewer GPUs than ranks, ranks share one (--allow-shared-gpu,
# labelled). A part goes on after a failure. What was printed is kept as it comes in build/gpu-report/, one file per part;
# if OUT names a folder, also in OUT/gpu.txt, and the records there. The last line is "N passed, N failed, N skipped (why)".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
exec </dev/null

build=build
report=$build/gpu-report
step_seconds=${TESTBED_GPU_STEP_SECONDS:-570}
# shellcheck source=tests/gpu/steps.sh
. tests/gpu/steps.sh

declare -A parts=([build]="build1 build2 build3" [a]="a1 a2" [b16]="b16a b16b b16c" [b]="b1 b2 b4 b16a b16b b16c" [d]="d1 d2"
  [e]="e1 e2")
every="deps ${parts[build]} ${parts[a]} ${parts[b]} c ${parts[d]} ${parts[e]}"
steps=()
for step in "${@:-all}"; do
  if [ "$step" = all ]; then
    read -ra named <<<"$every"
  elif [ -n "${parts[$step]:-}" ]; then
    read -ra named <<<"${parts[$step]}"
  elif [[ " $every " == *" $step "* ]]; then
    named=("$step")
  else
    echo "tests/gpu.sh: unknown step $step (known: all ${!parts[*]} $every)" >&2
    exit 2
  fi
  steps+=("${named[@]}")
done
if ! gpus=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>&1) || [ -z "$gpus" ]; then
  echo "tests/gpu.sh: no NVIDIA GPU here (nvidia-smi: ${gpus%%$'\n'*})" >&2
  exit 2
fi
n_gpus=$(wc -l <<<"$gpus")

mkdir -p "$report"

run_steps() {
  local step started minutes=() i
  printf '%s\n' "$gpus" | tee "$report/gpus.txt"
  for step in "${steps[@]}"; do
    printf '\n===== %s\n' "$step"
    started=$SECONDS
    step_end=$((SECONDS + step_seconds))
    results=$report/$step.results # lines "passed|failed|skipped N what"
    : >"$results"
    "step_$step" 2>&1 | tee "$report/$step.txt"
    minutes+=("$(awk -v s=$((SECONDS - started)) 'BEGIN { printf "%.1f", s / 60 }')")
    hand_over
  done
  {
    printf '\n===== minutes\n'
    for i in "${!steps[@]}"; do
      printf '%-6s %5s\n' "${steps[$i]}" "${minutes[$i]}"
    done
    printf '\n===== results\n'
    python3 -B tests/gpu/results.py total "${steps[@]/#/$report/}"
  } | tee "$report/summary.txt"
  return "${PIPESTATUS[0]}"
}

# The records so far, to OUT.
hand_over() {
  local file
  [ -n "${OUT:-}" ] || return 0
  for file in cluster.toml probe.json llama3-8b-on.json llama3-8b-off.json; do
    [ ! -f "$report/$file" ] || cp "$report/$file" "$OUT/"
  done
}

if [ -z "${OUT:-}" ]; then
  run_steps
  exit
fi
mkdir -p "$OUT"
run_steps 2>&1 | tee -a "$OUT/gpu.txt"
exit "${PIPESTATUS[0]}"
