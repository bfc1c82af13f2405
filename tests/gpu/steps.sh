# The steps of tests/gpu.sh, sourced by it. Set there: build, report, results, step_end, n_gpus, gpus.
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

# within SECONDS: as many, or what is left of the step's time.
within() {
  local left=$((step_end - SECONDS))
  echo $((left < 1 ? 1 : left < $1 ? left : $1))
}

# try WHAT COMMAND...
try() {
  local what=$1 code
  shift
  if [ "$SECONDS" -ge "$step_end" ]; then
    failed "$what: not begun: the step's time was over"
    return 1
  fi
  printf '\n$ %s\n' "$*"
  "$@"
  code=$?
  if [ "$code" -eq 0 ]; then passed "$what"; else failed "$what: exit code $code"; fi
  return "$code"
}

# ranks SECONDS N PROGRAM ARGS...: with fewer GPUs than ranks they share, and say so.
ranks() {
  local seconds n=$2
  seconds=$(within "$1")
  shift 2
  scripts/mpirun.sh "$seconds" "$n" "$@"
}
sharing() { [ "$1" -le "$n_gpus" ] || echo --allow-shared-gpu; }

step_deps() {
  # Without a network, or somebody to become root: the build will say what it lacks.
  if timeout "$(within 300)" bash launch/install_deps.sh --run-only; then
    passed "Debian packages"
  else
    skipped "Debian packages are not all installed"
  fi
  local places=("${CUDA_HOME:-}/bin" "${CUDA_PATH:-}/bin" /usr/local/cuda/bin) place nvcc
  nvcc=$(command -v nvcc || for place in "${places[@]}"; do [ ! -x "$place/nvcc" ] || echo "$place/nvcc"; done | head -n 1)
  if [ -z "$nvcc" ]; then
    failed "no nvcc: looked in PATH, CUDA_HOME and CUDA_PATH (${CUDA_HOME:-unset}, ${CUDA_PATH:-unset}), /usr/local/cuda/bin"
    return
  fi
  "$nvcc" --version
  passed "$nvcc"
  local root pip
  root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  # As cmake/cuda.cmake looks.
  readarray -t pip < <(python3 -c "import site, sysconfig
for path in (sysconfig.get_path('purelib'), *site.getsitepackages(), site.getusersitepackages()):
    print(path + '/nvidia/nccl')")
  find_one nccl.h ${NCCL_HOME:+"$NCCL_HOME/include"} "$root/include" "${pip[@]/%//include}" /usr/include
  find_one 'libnccl.so*' ${NCCL_HOME:+"$NCCL_HOME/lib"} "$root/lib" "$root/lib64" "${pip[@]/%//lib}" \
    /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu
  find_one 'libcublasLt.so*' "$root/lib" "$root/lib64" "$root/targets"
}
find_one() {
  local name=$1 found
  shift
  found=$(find -L "$@" -name "$name" -print -quit 2>/dev/null)
  if [ -n "$found" ]; then passed "$found"; else failed "no $name: looked in $*"; fi
}

configure() {
  local architectures
  architectures=$(sed -E 's/.*, *([0-9]+)\.([0-9]+)$/\1\2-real/' <<<"$gpus" | sort -u | paste -sd ';')
  try "configure for $architectures" cmake --preset release -DTESTBED_CUDA=ON -DTESTBED_GPU_TESTS=ON \
    "-DTESTBED_CUDA_ARCHITECTURES=$architectures"
}
# Also what can be built, where something cannot. When the time is over it ends; the next call goes on.
make_target() {
  try "build of $1" timeout --signal=INT --kill-after=10 "$(within 600)" \
    cmake --build "$build" --parallel "$(nproc)" --target "$1" -- -k 0
}
step_build1() { configure && make_target testbed; }
step_build2() { configure && make_target gpu_tests; }
step_build3() { configure && make_target bench_cuda_kernels; }

# kernel_tests FIRST: this one and every second one from there.
kernel_tests() {
  need cuda_rows_test_gpu || return
  local junit=$PWD/$report/a$1.xml limit
  rm -f "$junit"
  limit=$(within 540)
  # A few at a time: they share the GPU, and most of their time is the reference's.
  timeout "$((limit + 20))" ctest --test-dir "$build" --label-regex '^gpu$' --tests-information "$1,,2" --parallel 4 \
    --output-on-failure --timeout 300 --stop-time "$(date -d "+$limit seconds" +%H:%M:%S)" --output-junit "$junit"
  python3 -B tests/gpu/results.py junit "$junit" "$results"
}
step_a1() { kernel_tests 1; }
step_a2() { kernel_tests 2; }

# fixtures N: on N ranks. Several processes at once, each with some of the models: most of the time is start-up. Of
# ranks that share a GPU fewer, as each of them takes its part of the GPU's memory and time.
fixtures() {
  local n=$1 shards most shard log pids=()
  need fixtures_gpu_test || return
  shards=$(($(nproc) / n))
  most=$((4 * n_gpus / n))
  most=$((most > 4 ? 4 : most < 1 ? 1 : most))
  shards=$((shards > most ? most : shards < 1 ? 1 : shards))
  [ "$n" -le "$n_gpus" ] || export TESTBED_ALLOW_SHARED_GPU=1
  for ((shard = 0; shard < shards; shard++)); do
    log=$report/b$n.$shard.log
    {
      GTEST_COLOR=no GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard \
        ranks 560 "$n" "$build/fixtures_gpu_test" 2>&1
      echo "$?" >"$log.code"
    } | tee "$log" | sed -u "s/^/$shard: /" &
    pids[shard]=$!
  done
  for ((shard = 0; shard < shards; shard++)); do
    wait "${pids[$shard]}"
    log=$report/b$n.$shard.log
    python3 -B tests/gpu/results.py gtest "$log" "$(cat "$log.code")" "$results"
  done
}
step_b1() { fixtures 1; }
step_b2() { fixtures 2; }
step_b4() { fixtures 4; }

# Real widths in bf16, split against one rank on the same GPU (--check full).
presets() {
  need testbed || return
  local case words
  for case in "$@"; do
    read -ra words <<<"$case"
    # shellcheck disable=SC2046
    try "bf16: $case" ranks 280 "${words[0]}" "$build/testbed" run --device cuda --model "${words[@]:1}" \
      $(sharing "${words[0]}") --prompt-tokens 128 --gen-tokens 8 --warmup 1 --repeats 2 --check full
  done
}

step_b16a() {
  presets "1 llama3-8b --layers 4" "2 llama3-8b --layers 4 --tp 2" "2 llama3-8b --layers 4 --pp 2" \
    "2 llama3-8b --layers 4 --cp 2"
}
step_b16b() { presets "1 qwen3-8b --layers 4" "1 gemma3-27b --layers 6" "1 gpt-oss-120b --layers 2"; }
step_b16c() {
  presets "1 mixtral-8x7b --layers 2" "2 mixtral-8x7b --layers 2 --tp 2 --ep 2" "1 deepseek-v2 --layers 2"
}

step_c() {
  need bench_cuda_kernels || return
  try "bandwidth of each op" timeout "$(within 560)" "$build/bench_cuda_kernels"
}

step_d1() {
  need testbed || return
  try probe ranks 560 "$n_gpus" "$build/testbed" probe --device cuda --json "$report/probe.json" \
    --toml "$report/cluster.toml"
  # Collectives and pairs are of several ranks.
  # shellcheck disable=SC2046
  [ "$n_gpus" -gt 1 ] || try "probe of 2 ranks" ranks 280 2 "$build/testbed" probe --device cuda $(sharing 2) \
    --max-bytes 16777216 --json "$report/probe-2-ranks.json"
}
step_d2() {
  need testbed || return
  local cluster=$report/cluster.toml graphs against=()
  [ ! -f "$cluster" ] || against=(--cluster "$cluster")
  for graphs in on off; do
    try "llama3-8b, graphs $graphs" ranks 280 1 "$build/testbed" run --device cuda --model llama3-8b --batch 1 \
      --prompt-tokens 512 --gen-tokens 64 --cuda-graphs "$graphs" "${against[@]}" --json "$report/llama3-8b-$graphs.json" &&
      try "its record" python3 -B tests/e2e/check_record.py "$report/llama3-8b-$graphs.json"
  done
  try "graphs against none" timeout "$(within 60)" "$build/testbed" compare "$report/llama3-8b-off.json" "$report/llama3-8b-on.json"
  [ ! -f "$cluster" ] || try "simulated on what was probed" timeout "$(within 120)" \
    "$build/testbed" run --device sim --model llama3-8b --tp 1 \
    --batch 1 --prompt-tokens 512 --gen-tokens 64 "${against[@]}"
}

# A layout that was asked for is proven (exit code 0), or refused with its reason (2); 3: it did not take effect.
layout() {
  local n=$1 layout=$2 log=$report/e.$2.log code
  printf '\n'
  # shellcheck disable=SC2046
  ranks 280 "$n" "$build/testbed" run --device cuda --model llama3-8b --layers 8 --tp "$n" --layout "$layout" \
    $(sharing "$n") --prompt-tokens 128 --gen-tokens 32 --json "$report/layout-$layout.json" 2>&1 | tee "$log"
  code=${PIPESTATUS[0]}
  case $code in
    0) passed "layout $layout, tp $n: $([ "$layout" = auto ] && echo ran || echo proven)" ;;
    2) passed "layout $layout, tp $n: refused: $(grep -m 1 '^testbed:' "$log")" ;;
    *) failed "layout $layout, tp $n: exit code $code: $(grep -m 1 '^testbed:' "$log")" ;;
  esac
}
# layouts NAME...: on as many GPUs as there are, or of a single one those that two ranks can be asked for.
layouts() {
  need testbed || return
  local n=1 name
  while [ $((2 * n)) -le "$n_gpus" ] && [ "$n" -lt 8 ]; do n=$((2 * n)); done
  for name in "$@"; do
    if [ "$n" -gt 1 ]; then
      layout "$n" "$name"
    elif [[ " auto nvlink socket " == *" $name "* ]]; then
      layout 2 "$name"
    else
      skipped "layouts between GPUs: there is one GPU"
    fi
  done
}
step_e1() { layouts auto nvlink nvlink-ring; }
step_e2() { layouts pcie shm ib socket; }
