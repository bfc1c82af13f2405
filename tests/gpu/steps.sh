# The steps of tests/gpu.sh, sourced by it. Set there: build, report, results, n_gpus, gpus.
# shellcheck shell=bash disable=SC2154

passed() { echo "passed 1 $*" >>"$results"; }
failed() {
  echo "FAILED: $*"
  echo "failed 1 $*" >>"$results"
}
skipped() {
  echo "skipped: $*"
  echo "skipped 1 $*" >>"$results"
}

# need FILE...: of the build.
need() {
  local file
  for file in "$@"; do
    if [ ! -x "$build/$file" ]; then
      failed "$build/$file is not there (step build)"
      return 1
    fi
  done
}

# try WHAT COMMAND...
try() {
  local what=$1 code
  shift
  printf '\n$ %s\n' "$*"
  "$@"
  code=$?
  if [ "$code" -eq 0 ]; then passed "$what"; else failed "$what: exit code $code"; fi
  return "$code"
}

# ranks SECONDS N PROGRAM ARGS...: with fewer GPUs than ranks they share, and say so.
ranks() {
  local seconds=$1 n=$2
  shift 2
  scripts/mpirun.sh "$seconds" "$n" "$@"
}
sharing() { [ "$1" -le "$n_gpus" ] || echo --allow-shared-gpu; }

step_deps() {
  try "Debian packages" bash launch/install_deps.sh
  local places=("${CUDA_HOME:-}/bin" "${CUDA_PATH:-}/bin" /usr/local/cuda/bin) place nvcc
  nvcc=$(command -v nvcc || for place in "${places[@]}"; do [ ! -x "$place/nvcc" ] || echo "$place/nvcc"; done | head -n 1)
  if [ -z "$nvcc" ]; then
    failed "no nvcc: looked in PATH, CUDA_HOME and CUDA_PATH (${CUDA_HOME:-unset}, ${CUDA_PATH:-unset}), /usr/local/cuda/bin"
    return
  fi
  "$nvcc" --version
  passed "$nvcc"
  local root
  root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  find_one nccl.h "$root/include" /usr/include
  find_one 'libnccl.so*' "$root/lib" "$root/lib64" /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu
  find_one 'libcublasLt.so*' "$root/lib" "$root/lib64" "$root/targets"
}
find_one() {
  local name=$1 found
  shift
  found=$(find -L "$@" -name "$name" -print -quit 2>/dev/null)
  if [ -n "$found" ]; then passed "$found"; else failed "no $name: looked in $*"; fi
}

step_build() {
  local architectures
  architectures=$(sed -E 's/.*, *([0-9]+)\.([0-9]+)$/\1\2-real/' <<<"$gpus" | sort -u | paste -sd ';')
  try "configure for $architectures" cmake --preset release -DTESTBED_CUDA=ON -DTESTBED_GPU_TESTS=ON \
    "-DTESTBED_CUDA_ARCHITECTURES=$architectures" || return
  # Also what can be built, where something cannot.
  try build cmake --build "$build" --parallel "$(nproc)" --target testbed gpu_tests bench_cuda_kernels -- -k 0
}

step_a() {
  need cuda_rows_test_gpu || return
  local junit=$PWD/$report/a.xml
  rm -f "$junit"
  # A few at a time: they share the GPU, and most of their time is the reference's.
  ctest --test-dir "$build" --label-regex '^gpu$' --parallel 4 --output-on-failure --timeout 300 --output-junit "$junit"
  python3 -B tests/gpu/results.py junit "$junit" "$results"
}

# fixtures N: on N ranks. Several processes at once, each with some of the models: most of the time is start-up.
fixtures() {
  local n=$1 shards shard log pids=()
  need fixtures_gpu_test || return
  shards=$(($(nproc) / n))
  shards=$((shards > 4 ? 4 : shards < 1 ? 1 : shards))
  [ "$n" -le "$n_gpus" ] || export TESTBED_ALLOW_SHARED_GPU=1
  for ((shard = 0; shard < shards; shard++)); do
    GTEST_COLOR=no GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard \
      ranks 580 "$n" "$build/fixtures_gpu_test" >"$report/b$n.$shard.log" 2>&1 &
    pids[shard]=$!
  done
  for ((shard = 0; shard < shards; shard++)); do
    wait "${pids[$shard]}"
    local code=$?
    log=$report/b$n.$shard.log
    cat "$log"
    python3 -B tests/gpu/results.py gtest "$log" "$code" "$results"
  done
}
step_b1() { fixtures 1; }
step_b2() { fixtures 2; }
step_b4() { fixtures 4; }

# Real widths in bf16, split against one rank on the same GPU (--check full).
step_b16() {
  need testbed || return
  local case
  for case in "1 llama3-8b --layers 4" "2 llama3-8b --layers 4 --tp 2" "2 llama3-8b --layers 4 --pp 2" \
    "2 llama3-8b --layers 4 --cp 2" "1 qwen3-8b --layers 4" "1 gemma3-27b --layers 6" \
    "1 mixtral-8x7b --layers 2" "2 mixtral-8x7b --layers 2 --tp 2 --ep 2" "1 deepseek-v2 --layers 2" \
    "1 gpt-oss-120b --layers 2"; do
    local words
    read -ra words <<<"$case"
    # shellcheck disable=SC2046
    try "bf16: $case" ranks 280 "${words[0]}" "$build/testbed" run --device cuda --model "${words[@]:1}" \
      $(sharing "${words[0]}") --prompt-tokens 128 --gen-tokens 8 --warmup 1 --repeats 2 --check full
  done
}

step_c() {
  need bench_cuda_kernels || return
  try "bandwidth of each op" timeout 580 "$build/bench_cuda_kernels"
}

step_d() {
  need testbed || return
  local cluster=$report/cluster.toml graphs
  try probe ranks 400 "$n_gpus" "$build/testbed" probe --device cuda --json "$report/probe.json" --toml "$cluster"
  local against=()
  [ ! -f "$cluster" ] || against=(--cluster "$cluster")
  for graphs in on off; do
    try "llama3-8b, graphs $graphs" ranks 280 1 "$build/testbed" run --device cuda --model llama3-8b --batch 1 \
      --prompt-tokens 512 --gen-tokens 64 --cuda-graphs "$graphs" "${against[@]}" --json "$report/llama3-8b-$graphs.json" &&
      try "its record" python3 -B tests/e2e/check_record.py "$report/llama3-8b-$graphs.json"
  done
  try "graphs against none" "$build/testbed" compare "$report/llama3-8b-off.json" "$report/llama3-8b-on.json"
  [ ! -f "$cluster" ] || try "simulated on what was probed" "$build/testbed" run --device sim --model llama3-8b --tp 1 \
    --batch 1 --prompt-tokens 512 --gen-tokens 64 "${against[@]}"
}

# A layout that was asked for is proven (exit code 0), or refused with its reason (2); 3: it did not take effect.
layout() {
  local n=$1 layout=$2 log=$report/e.$2.log code
  printf '\n'
  # shellcheck disable=SC2046
  ranks 280 "$n" "$build/testbed" run --device cuda --model llama3-8b --layers 8 --tp "$n" --layout "$layout" \
    $(sharing "$n") --prompt-tokens 128 --gen-tokens 32 --json "$report/layout-$layout.json" >"$log" 2>&1
  code=$?
  cat "$log"
  case $code in
    0) passed "layout $layout, tp $n: $([ "$layout" = auto ] && echo ran || echo proven)" ;;
    2) passed "layout $layout, tp $n: refused: $(grep -m 1 '^testbed:' "$log")" ;;
    *) failed "layout $layout, tp $n: exit code $code: $(grep -m 1 '^testbed:' "$log")" ;;
  esac
}
step_e() {
  need testbed || return
  local n=1 name
  while [ $((2 * n)) -le "$n_gpus" ] && [ "$n" -lt 8 ]; do n=$((2 * n)); done
  if [ "$n" -eq 1 ]; then
    skipped "layouts between GPUs: there is one GPU"
    for name in auto nvlink socket; do layout 2 "$name"; done
    return
  fi
  for name in auto nvlink nvlink-ring pcie shm ib socket; do layout "$n" "$name"; done
}
