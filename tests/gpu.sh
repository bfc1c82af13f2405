#!/usr/bin/env bash
# On a machine with NVIDIA GPUs (one is enough for most of it): builds for them, and runs what only they can show.
#   bash tests/gpu.sh [STEP]...     default: deps build a b c d e, in this order
#     deps   what the build needs: Debian packages are installed, CUDA and NCCL are looked for
#     build  build/, release preset, for this machine's GPUs only
#     a      every kernel against the references of the unit tests
#     b      all fixture models on 1, 2 and 4 ranks in f32, and presets in bf16; parts: b1 b2 b4 b16
#     c      each op's bandwidth beside the device's copy, products beside a large product
#     d      probe; llama3-8b with and without graphs, and what the simulator predicts from the probe
#     e      layouts: each proven or refused
# With fewer GPUs than ranks, ranks share one (--allow-shared-gpu, labelled). A step goes on after a failure. What was
# printed is kept in build/gpu-report/, one file per step. The last line is "N passed, N failed, N skipped (why)".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
exec </dev/null

build=build
report=$build/gpu-report
# shellcheck source=tests/gpu/steps.sh
. tests/gpu/steps.sh

steps=()
for step in "${@:-all}"; do
  case $step in
    all) steps+=(deps build a b1 b2 b4 b16 c d e) ;;
    b) steps+=(b1 b2 b4 b16) ;;
    deps | build | a | b1 | b2 | b4 | b16 | c | d | e) steps+=("$step") ;;
    *)
      echo "tests/gpu.sh: unknown step $step (known: deps build a b b1 b2 b4 b16 c d e)" >&2
      exit 2
      ;;
  esac
done
if ! gpus=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>&1) || [ -z "$gpus" ]; then
  echo "tests/gpu.sh: no NVIDIA GPU here (nvidia-smi: ${gpus%%$'\n'*})" >&2
  exit 2
fi
n_gpus=$(wc -l <<<"$gpus")

mkdir -p "$report"
printf '%s\n' "$gpus" | tee "$report/gpus.txt"
minutes=()
for step in "${steps[@]}"; do
  printf '\n===== %s\n' "$step"
  started=$SECONDS
  results=$report/$step.results # lines "passed|failed|skipped N what"
  : >"$results"
  "step_$step" 2>&1 | tee "$report/$step.txt"
  minutes+=("$(awk -v s=$((SECONDS - started)) 'BEGIN { printf "%.1f", s / 60 }')")
done

{
  printf '\n===== minutes\n'
  for i in "${!steps[@]}"; do
    printf '%-6s %5s\n' "${steps[$i]}" "${minutes[$i]}"
  done
  printf '\n===== results\n'
  python3 -B tests/gpu/results.py total "${steps[@]/#/$report/}"
} | tee "$report/summary.txt"
exit "${PIPESTATUS[0]}"
