#!/usr/bin/env bash
# Trains one run: checks everything, prepares the run directory, supervises the run's programs.
set -euo pipefail

usage() {
  sed "s#\./run_script\.sh#${TFAGENTS_COMMAND:-./run_script.sh}#" <<'HELP'
usage: ./run_script.sh [OPTION]... VARS.sh

The same command again continues a run that was stopped. A run keeps copies of its JSON and of its params' folder: if these
were edited since it began, a start is refused with the differences, unless --keep, --fresh, or --from with another --name
says what to do. Ctrl-C or SIGTERM saves everything and ends; a second one ends at once. Exit codes: 0 finished, 1 failed,
2 something must be changed first, 75 stopped and saved.

arguments:
  VARS.sh           assigns the SAC_ variables, as training_variables.sh does

options:
  -h, --help        show this help message and exit
  --check           make all checks and report them; start nothing
  --set NAME=VALUE  set an attribute of TrainParams, a key of the JSON (config.KEY) or a SAC_ variable for this run
  --name NAME       set SAC_EXP_NAME for this run
  --seed N          set SAC_SEED for this run
  --workers N       set SAC_NUM_COLLECT_WORKERS for this run
  --from RUN        begin a new run with what another one has; RUN@best is its best agent, RUN its newest
  --take WHAT       agent (networks, alpha, optimizers), networks, replay (experience), or all (both, and the counters)
                    (default: agent)
  --keep            continue with the run's own copies of files edited since
  --fresh           start over; the existing run is moved aside
HELP
}

tfagents_root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
# In a copy of the repository without links this file lies at its top.
[[ -d $tfagents_root/tfagents_system ]] || tfagents_root=$(cd "$tfagents_root/../.." && pwd)
# sbatch runs a copy of this file elsewhere.
if [[ ! -d $tfagents_root/tfagents_system ]]; then tfagents_root=${SLURM_SUBMIT_DIR:-$tfagents_root}; fi
readonly tfagents_launch=$tfagents_root/tfagents_system/launch
[[ -d $tfagents_launch ]] || { echo "error: tfagents_system is not in $tfagents_root: submit from the repository" >&2 && exit 2; }
# shellcheck source=tfagents_system/launch/launcher.sh
source "$tfagents_launch/launcher.sh"

tfagents_name=${TFAGENTS_COMMAND:-./run_script.sh}
tfagents_arguments=("$@")
if [[ -z ${SLURM_JOB_ID:-}${TFAGENTS_TERMS:-}$(compgen -e SAC_) ]]; then export TFAGENTS_CALL=${TFAGENTS_CALL:-$(printf '%q' "$0")$(printf ' %q' "$@")}; fi
tfagents_options=() tfagents_files=() tfagents_check='' tfagents_study=''
while (($#)); do
  if [[ $1 == --?*=* && $1 != --study=* ]]; then set -- "${1%%=*}" "${1#*=}" "${@:2}"; fi
  case $1 in
    -h | --help) usage && exit 0 ;;
    --check) tfagents_check=1 ;;
    --set)
      (($# > 1)) || fail "--set needs NAME=VALUE, as in --set batch_size=512"
      tfagents_options+=(--set "$2") && shift
      ;;
    --name | --seed | --workers | --from | --take)
      (($# > 1)) || fail "$1 needs a value: $tfagents_name --help"
      tfagents_options+=("$1" "$2") && shift
      ;;
    --study=*) tfagents_study=${1#*=} ;; # Of submit.sh: see tasks/study.py.
    --fresh | --keep) tfagents_options+=("$1") ;;
    -*) fail "$1 is no option of $tfagents_name: give --check, --name, --seed, --workers, --set, --from, --take, --fresh or --keep (--help says more)" ;;
    *) tfagents_files+=("$1") ;;
  esac
  shift
done
((${#tfagents_files[@]})) || fail "VARS.sh is missing: $tfagents_name $([[ -f vars.sh ]] && echo vars.sh || echo VARS.sh), or --help"
((${#tfagents_files[@]} == 1)) || fail "one vars file, found ${tfagents_files[*]}: give one (options have two dashes, --help has all)"
tfagents_vars=${tfagents_files[0]}
if [[ $tfagents_check && $tfagents_study ]]; then tfagents_options+=(--set SAC_GRID=); fi # Its trials have one of their own.
if [[ $tfagents_check ]]; then tfagents_options+=(--check); fi

# shellcheck source=tfagents_system/launch/vars_file.sh
source "$tfagents_launch/vars_file.sh"
if [[ -z $tfagents_check ]]; then refuse_login_node; fi
surround "$tfagents_launch/run_script.sh" "${tfagents_arguments[@]}"

tfagents_start=("$tfagents_launch/train_script.sh" --vars-file "$tfagents_vars" "${tfagents_options[@]}")
if [[ $tfagents_study && -z $tfagents_check ]]; then
  clean_shell
  tfagents_python=$(toolkit_python "$tfagents_root")
  lead_python_path "$tfagents_root"
  export PYTHONUNBUFFERED=1
  exec "$tfagents_python" -P -m tfagents_system.tasks.study "$tfagents_study" "${tfagents_start[@]}"
fi
# One process from here to the end, so that a signal to it reaches whoever is at work.
exec "${tfagents_start[@]}"
