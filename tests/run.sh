#!/usr/bin/env bash
# Builds, and runs all tests.
#   bash tests/run.sh [--all] [--preset P]     --all: every model and split, not the default subset
# Fails if any test fails or a layer has no tests. ctest's closing summary comes last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=release
options=()
while [ $# -gt 0 ]; do
  case $1 in
    --all)
      export TESTBED_TEST_ALL=1
      options+=(-DTESTBED_TIMEOUT_SCALE=10)
      ;;
    --preset)
      preset=${2:?--preset needs a name}
      shift
      ;;
    *)
      echo "usage: bash tests/run.sh [--all] [--preset P]" >&2
      exit 2
      ;;
  esac
  shift
done
case $preset in
  release) build=build ;;
  debug | asan | tsan) build=build-$preset ;;
  *)
    echo "tests/run.sh: unknown preset $preset (known: release, debug, asan, tsan)" >&2
    exit 2
    ;;
esac
layers=(unit mpi golden e2e)

needs=()
[ "$preset" != asan ] || needs=(--sanitizers) # clang
bash launch/install_deps.sh ${needs[@]+"${needs[@]}"}

started=$SECONDS
cmake --preset "$preset" "${options[@]}"
cmake --build --preset "$preset" --target all
build_seconds=$((SECONDS - started))

out=$build/test-results
mkdir -p "$out"
rm -f "$out"/*
ctest --preset "$preset" --show-only=json-v1 >"$out/tests.json"
python3 scripts/test_layers.py check "$out/tests.json" "${layers[@]}"

# The summary is held back, so that it comes after the minutes.
started=$SECONDS
status=0
{
  ctest --preset "$preset" --parallel "$(nproc)" --output-junit "$PWD/$out/junit.xml" </dev/null 2>&1 ||
    echo "$?" >"$out/status"
} | tee "$out/log.txt" | sed -u '/% tests passed, /,$d'
[ ! -f "$out/status" ] || status=$(cat "$out/status")

if [ -f "$out/junit.xml" ]; then
  python3 scripts/test_layers.py minutes "$out/tests.json" "$out/junit.xml" "${layers[@]}"
fi
awk -v b="$build_seconds" -v t="$((SECONDS - started))" \
  'BEGIN { printf "build %.1f minutes, tests %.1f minutes (wall clock)\n\n", b / 60, t / 60 }'
sed -n '/% tests passed, /,$p' "$out/log.txt"
exit "$status"
