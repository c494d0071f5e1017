#!/usr/bin/env bash
# Trains one run: checks everything, prepares the run directory, supervises the run's programs.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: ./run_script.sh [--check] VARS.sh

VARS.sh assigns the SAC_ variables (see training_variables.sh). The same command again goes on with a run that was stopped.
--check makes the checks of a start, says what it looked at and found, and neither writes nor starts anything.
Ctrl-C or SIGTERM saves everything and ends; a second one ends at once.

Exit codes: 0 finished, 1 failed, 2 something must be changed first, 75 stopped and saved.
HELP
}

fail() {
  echo "error: $*" >&2
  exit 2
}

tfagents_root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
# sbatch runs a copy of this file that lies elsewhere.
if [[ ! -f $tfagents_root/train_script.sh ]]; then tfagents_root=${SLURM_SUBMIT_DIR:-$tfagents_root}; fi
[[ -f $tfagents_root/train_script.sh ]] || fail "train_script.sh is not in $tfagents_root: submit from the repository"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit 0
fi
tfagents_arguments=("$@")
tfagents_mode=(--then "$tfagents_root/train_script.sh")
if [[ ${1:-} == --check ]]; then
  tfagents_mode=(--check)
  shift
fi
if (($# != 1)) || [[ $1 == -* ]]; then
  usage >&2
  exit 2
fi
[[ -f $1 && -r $1 ]] || fail "vars file $1 is missing or cannot be read: give the path of a file such as training_variables.sh"
tfagents_vars=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")

# shellcheck source=tfagents_system/launch/vars_file.sh
source "$tfagents_root/tfagents_system/launch/vars_file.sh"
# shellcheck source=tfagents_system/launch/login_node.sh
source "$tfagents_root/tfagents_system/launch/login_node.sh"
if [[ ${tfagents_mode[0]} != --check ]]; then refuse_login_node; fi
# shellcheck source=tfagents_system/launch/surroundings.sh
source "$tfagents_root/tfagents_system/launch/surroundings.sh" "$tfagents_root/run_script.sh" "${tfagents_arguments[@]}"
# Every task of a job array has a seed of its own, unless a grid says what its tasks have.
if [[ -z ${SAC_GRID:-} && ${SLURM_ARRAY_TASK_ID:-} =~ ^[0-9]{1,9}$ && ${SAC_SEED:=0} =~ ^[0-9]{1,9}$ ]]; then
  export SAC_SEED=$((10#$SAC_SEED + 10#$SLURM_ARRAY_TASK_ID))
fi

tfagents_python=$("$tfagents_root/setup.sh" --print-python)
# The repository comes first, the folder of the user last: neither hides the other's modules, nor Python's own.
export PYTHONPATH="$tfagents_root${PYTHONPATH:+:$PYTHONPATH}:$PWD" PYTHONUNBUFFERED=1
export CUDA_VISIBLE_DEVICES=-1
# One process from here to the end, so that a signal to it reaches whoever is at work.
exec "$tfagents_python" -P -m tfagents_system.launch.prepare --vars_file "$tfagents_vars" "${tfagents_mode[@]}"
