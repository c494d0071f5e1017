#!/usr/bin/env bash
# Which lines the fast tests cover of the rooms that work within one process: takes half as long again as the tests alone.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: tests/coverage.sh [PYTEST_ARGUMENT...]

Shows the coverage of each file, and fails if all together are below the floor (fail_under in pyproject.toml).
HELP
}

case ${1:-} in -h | --help) usage && exit 0 ;; esac
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
python=$(./setup.sh --print-python --dev)
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
# Not those of launch/: they start programs, which are not measured.
rooms=(agents checks envs experience machine playing policies replay report run_files settings trainer transport worker)
"$python" -m coverage run -m pytest "${rooms[@]/#/tests/}" -m 'not slow' "$@"
"$python" -m coverage report
