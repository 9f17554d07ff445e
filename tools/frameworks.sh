#!/usr/bin/env bash
# usage: frameworks.sh torch [keras jax ...]: with the venv's bin on the PATH, installs these.
# torch goes first and alone: what comes later finds it there. Its default wheel for Linux brings gigabytes of CUDA that
# nothing here needs, so it is looked at before the download and refused.
set -euo pipefail
version=2.13.0
if ! python -c 'import torch' 2>/dev/null; then
  plan=$(python -m pip install -q --dry-run --report - torch==$version)
  if grep -qE '"name": *"(nvidia|cuda)-' <<<"$plan"; then
    echo "the torch $version that pip finds here is built for CUDA: install a CPU build into the venv" >&2
    exit 1
  fi
  python -m pip install -q torch==$version
fi
shift
[ $# -eq 0 ] && exit 0
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
python -m pip freeze | grep -i '^torch==' >"$constraints"
python -m pip install -q -c "$constraints" "$@"
