#!/usr/bin/env bash
# usage: wheel.sh: with the venv's bin on the PATH. Leaves one wheel in dist/ that carries the libraries it needs,
# and tries it in a venv that has nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
work=build/wheel
rm -rf $work dist
python -m pip wheel -q --no-build-isolation --no-deps -w $work .
auditwheel repair -w dist $work/penstock-*.whl
python -m venv $work/venv
$work/venv/bin/python -m pip install -q dist/penstock-*.whl
# From another folder, so that nothing of the source tree can be imported.
smoke=$PWD/tools/wheel_smoke.py
python=$PWD/$work/venv/bin/python
cd $work && "$python" "$smoke"
