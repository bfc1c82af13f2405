#!/usr/bin/env bash
# scripts/lint.sh [--deep] [BUILD_DIR [FILE...]] : clang-tidy 14 over our .cpp files (default: all of kernels,
# parallel, runtime, launch), with BUILD_DIR's compile_commands.json (default build). build-asan's headers are precompiled by
# clang: half the time, once it is built.
# Every file is checked, even after a finding; the end of the output names each finding once more. Also no type may be
# defined twice (one_definition.py).
# --deep: clang's analyzer, too, which follows every path and takes five times as long as the rest.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
checks=-clang-analyzer-* # added to what .clang-tidy lists
if [ "${1:-}" = --deep ]; then
  checks=
  shift
fi
build=${1:-build}
shift || true
if [ ! -f "$build/compile_commands.json" ]; then
  echo "lint: no $build/compile_commands.json; run cmake --preset release first" >&2
  exit 2
fi
if [ $# -eq 0 ]; then
  mapfile -d '' files < <(find kernels parallel runtime launch -name '*.cpp' -print0 | sort -z)
else
  files=("$@")
fi
if [ ${#files[@]} -eq 0 ]; then
  echo "lint: no .cpp files found" >&2
  exit 1
fi

# A file that nothing builds would be checked with guessed flags.
for file in "${files[@]}"; do
  if ! grep -q "\"file\": \"$PWD/$file\"" "$build/compile_commands.json"; then
    echo "lint: $file is in no target of $build" >&2
    exit 1
  fi
done

# The checks are kept from the system's headers (lint_scope.cpp): the same findings in half of the time.
scope=$(mktemp -d)/lint_scope.so
g++ -std=c++17 -O1 -fPIC -shared -fno-rtti -w -isystem /usr/lib/llvm-14/include scripts/lint_scope.cpp -o "$scope"

# g++'s warning options are the compiler's business; here only the checks of .clang-tidy speak. What is said of a file
# comes out at once, so that files do not mix.
check() {
  local output status=0
  output=$(clang-tidy-14 --load="$3" --checks="$4" --quiet -p "$1" --extra-arg=-Wno-everything "$2" 2>&1) || status=$?
  [ "$status" -eq 0 ] || grep -q ': error: ' <<<"$output" || echo "lint: clang-tidy ended with $status on $2"
  grep -v 'warnings\? generated\.$\|^Suppressed\|^Use -header-filter' <<<"$output" | grep . || true
  return "$status"
}
export -f check

said=$(mktemp)
trap 'rm -rf "$said" "${scope%/*}"' EXIT
status=0
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" bash -c 'check "$0" "$3" "$1" "$2"' "$build" "$scope" "$checks" | tee "$said" || status=1
python3 scripts/one_definition.py | tee -a "$said" || status=1
if [ "$status" -ne 0 ]; then
  printf '\nlint: findings\n'
  grep -E ': (error|warning): |^lint: clang-tidy ended' "$said" | sort -u
  exit 1
fi
echo "lint: ${#files[@]} files are clean"
