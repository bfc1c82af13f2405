#!/usr/bin/env bash
# scripts/format.sh [--check] : formats our C++ with clang-format 14, or fails naming what it would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run -Werror)

find kernels parallel runtime launch tests benchmarks \( -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 --no-run-if-empty clang-format-14 --style=file "${mode[@]}"
