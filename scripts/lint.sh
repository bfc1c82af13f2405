#!/usr/bin/env bash
# scripts/lint.sh [BUILD_DIR [FILE...]] : clang-tidy 14 over our .cpp files (default: all of kernels,
# parallel, runtime, launch), with BUILD_DIR's compile_commands.json (default build).
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
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

# g++'s warning options are the compiler's business; here only the checks of .clang-tidy speak.
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 --quiet -p "$build" \
    --extra-arg=-Wno-everything 2> >(grep -v 'warnings\? generated\.$\|^Suppressed\|^Use -header-filter' >&2)
echo "lint: ${#files[@]} files are clean"
