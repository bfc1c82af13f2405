#!/usr/bin/env bash
# benchmarks/peers.sh [FOLDER=build/peers] [JOBS=2] : builds what docs/performance.md is measured against, outside the
# source: llama.cpp from PyPI's source package of llama-cpp-python with this processor's own instructions, and numpy and
# gguf to write the model with. Ten minutes and more; asks PyPI. Nothing else needs any of it.
set -euo pipefail
folder=${1:-$(dirname "${BASH_SOURCE[0]}")/../build/peers}
jobs=${2:-2}
venv=$folder/llama-venv
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet numpy gguf
launchers=""
if command -v ccache >/dev/null; then
  launchers="-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
fi
# g++ 12 takes this processor for a Zen 3 but lists its instructions rightly, and those are what GGML_NATIVE asks for.
CMAKE_BUILD_PARALLEL_LEVEL=$jobs CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF $launchers" \
  nice -n 10 "$venv/bin/pip" install --no-binary llama-cpp-python llama-cpp-python
"$venv/bin/python" -c 'import llama_cpp; print("llama-cpp-python", llama_cpp.__version__)'
