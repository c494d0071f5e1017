#!/usr/bin/env bash
# Trains seeds and settings on this machine, a few runs at a time.
set -euo pipefail

usage() {
  sed "s#\./sweep\.sh#${TFAGENTS_COMMAND:-./sweep.sh}#" <<'HELP'
Usage: ./sweep.sh VARS.sh [--seeds 0-4] [--grid FILE] [--parallel P] [--set NAME=VALUE]...

Trains every task of a grid, P at a time on CPUs of their own, in the run directories <name>_task_<id>.
--grid FILE is JSON: an object of lists, such as {"train_batch_size": [128, 256]}, or a list of objects (docs/how_to/many_runs.md);
  its default is SAC_GRID. --seeds is one more list in it. --set overrides something in all tasks.
The same command continues what is unfinished. Ctrl-C or SIGTERM saves all runs and ends.

Exit codes: 0 all are done, 1 some have failed, 2 something must be changed first, 75 stopped and saved.
HELP
}

for argument in "$@"; do
  if [[ $argument == -h || $argument == --help ]]; then
    usage
    exit 0
  fi
done

fail() {
  echo "error: $*" >&2
  exit 2
}

(($#)) || fail "VARS.sh is missing: ${TFAGENTS_COMMAND:-./sweep.sh} VARS.sh --seeds 0-4, or --help"
[[ $1 != -* ]] || fail "$1: the vars file comes first, as in ./sweep.sh my_vars.sh --seeds 0-4"
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
# In a copy of the repository without links this file lies at its top.
[[ -d $root/tfagents_system ]] || root=$(cd "$root/../.." && pwd)
# shellcheck source=tfagents_system/launch/toolkit_python.sh
source "$root/tfagents_system/launch/toolkit_python.sh"
# SAC_PYTHON and SAC_VENV may be in the vars file. All else in it is read again for each task.
python=$(
  if [[ -f $1 ]]; then
    tfagents_vars=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
    export SLURM_ARRAY_TASK_ID=${SLURM_ARRAY_TASK_ID:-0}
    # shellcheck source=tfagents_system/launch/vars_file.sh
    source "$root/tfagents_system/launch/vars_file.sh" >&2
  fi
  toolkit_python "$root"
)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}:$PWD" PYTHONUNBUFFERED=1
exec "$python" -P -m tfagents_system.launch.sweep "$@"
