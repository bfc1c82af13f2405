#!/usr/bin/env bash
# Installs, with apt-get, the Debian packages that are missing; does nothing when all are there.
#   bash launch/install_deps.sh [--lint] [--sanitizers] [--run-only]      --run-only: without what the tests alone need
set -euo pipefail

packages=(
  cmake ninja-build g++ ccache pkg-config
  libopenmpi-dev openmpi-bin
  libtomlplusplus-dev nlohmann-json3-dev libcli11-dev libfmt-dev libpugixml-dev
  libpcre2-dev libhwloc-dev libdnnl-dev ocl-icd-opencl-dev # what dnnl-config.cmake looks for
  libsimgrid-dev
  libboost-context-dev # the CUDA emulation of the tests
  libgtest-dev libgmock-dev libbenchmark-dev
  libxml2-utils # xmllint, for the tests
  python3 python3-pip unzip ca-certificates
  iproute2 # launch/testbed-mpirun.sh, scripts/two_hosts.sh
)
# Of the tests of launch/ and two hosts: Slurm on one machine (13 MB), manifests.
test_packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge python3-yaml python3-jsonschema)
for option in "$@"; do
  case $option in
    --run-only) test_packages=() ;;
    --lint) packages+=(clang-format-14 clang-tidy-14 libclang-14-dev llvm-14-dev) ;;
    --sanitizers) packages+=(clang-14 libclang-rt-14-dev) ;;
    *)
      echo "install_deps: unknown option $option (known: --lint, --sanitizers, --run-only)" >&2
      exit 2
      ;;
  esac
done
packages+=(${test_packages[@]+"${test_packages[@]}"})

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install_deps: this is no Debian system; install the equivalents of: ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install_deps: all ${#packages[@]} packages are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps: missing ${missing[*]}; run as root, or install sudo" >&2
    exit 1
  fi
  as_root=(sudo)
fi
# Soon over where there is no network.
apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
    -o Acquire::https::Timeout=20 "$@"
}

echo "install_deps: installing ${missing[*]}"
# A package mirror may be briefly out of step with its index: one more try.
if ! { apt_get update -q || { sleep 5 && apt_get update -q; }; } ||
  ! apt_get install -y -q --no-install-recommends "${missing[@]}"; then
  echo "install_deps: not installed (no network?): ${missing[*]}" >&2
  exit 1
fi
