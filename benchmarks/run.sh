#!/usr/bin/env bash
# Set up the benchmark's own environment (once) and run it: benchmarks/run.sh [--quick] [--json FILE] ...
# With a module first, run that instead: benchmarks/run.sh benchmarks.profile_loop
set -euo pipefail
cd "$(dirname "$0")/.."

SGLANG=0.5.23 # the newest wheel; only its cache code is used, so none of its dependencies are installed
VENV=benchmarks/.venv
STAMP="$VENV/.stamp-$(cat benchmarks/run.sh benchmarks/requirements.txt | cksum | tr ' ' -)"

if [ ! -e "$STAMP" ]; then
    echo "setting up $VENV (torch, SGLang $SGLANG and Dynamo; once)" >&2
    rm -rf "$VENV"
    "${PYTHON:-python3}" -m venv "$VENV"
    pip="$VENV/bin/python -m pip --disable-pip-version-check"
    $pip install --quiet --requirement benchmarks/requirements.txt
    $pip download --quiet --no-deps --only-binary :all: --dest "$VENV/wheels" "sglang==$SGLANG"
    "$VENV/bin/python" -m zipfile -e "$VENV"/wheels/sglang-"$SGLANG"-*.whl "$VENV/sglang"
    rm -r "$VENV/wheels"
    touch "$STAMP"
fi

module=benchmarks.core
case "${1:-}" in benchmarks.*) module=$1 && shift ;; esac
PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" exec "$VENV/bin/python" -m "$module" "$@"
