#!/usr/bin/env bash
# Joins workers of this machine to a run elsewhere: checks everything, then supervises them until it is over.
set -euo pipefail

usage() {
  sed "s#\./join_script\.sh#${TFAGENTS_COMMAND:-./join_script.sh}#" <<'HELP'
Usage: ./join_script.sh VARS.sh --to RUN [--ssh USER@HOST] [OPTION]...
       ./join_script.sh VARS.sh --server HOST:PORT --credentials DIR [OPTION]...

VARS.sh is the vars file of the run (SAC_COLLECT_WORKER_CPUS and SAC_SHARE_CPUS count for this machine).

  --to RUN             run directory, such as logs/pendulum, if it can be seen from here: the run's server, credentials,
                       params and configuration are found there. Waits for a run that is being started
  --ssh USER@HOST      if you have a login there: --to is a directory of that machine (absolute, or relative to your
                       home there), and all that is needed comes by ssh
  --server HOST:PORT   gateway of the run (SAC_GATEWAY_PORT), or localhost:PORT of its replay server on its own machine
  --workers N          how many; without it as many as this machine has CPUs for
  --role KIND          collect (as the run's own workers), eval (only evaluates), expert (collects with
                       SAC_EXPERT_POLICY and ignores updates) or test (plays the newest policy, stores nothing)
  --credentials DIR    the run's certificates
  --password_file FILE the run's password
  --set NAME=VALUE     what the run was started with, if its directory can't be seen from here
  --check              only checks, including the way to the run, and says what was looked at

The workers leave when the run is over, or with Ctrl-C or SIGTERM; the run continues without them. What they need and their
logs are in joined/<this machine> of the run directory.

Exit codes: 0 the run is finished, 1 failed, 2 something must be changed first, 75 this command or the run was stopped.
HELP
}

fail() {
  echo "error: $*" >&2
  exit 2
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit 0
fi
(($#)) || fail "VARS.sh is missing: ${TFAGENTS_COMMAND:-./join_script.sh} VARS.sh --to RUN, or --help"
[[ $1 != -* ]] || fail "$1: the vars file comes first, as in ${TFAGENTS_COMMAND:-./join_script.sh} my_vars.sh --to RUN"
tfagents_root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
# In a copy of the repository without links this file lies at its top.
[[ -d $tfagents_root/tfagents_system ]] || tfagents_root=$(cd "$tfagents_root/../.." && pwd)
[[ -f $1 && -r $1 ]] || fail "vars file $1 is missing or cannot be read: give the path of a file such as training_variables.sh"
tfagents_vars=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
tfagents_arguments=("$@") tfagents_options=("${@:2}")
# shellcheck source=tfagents_system/launch/vars_file.sh
source "$tfagents_root/tfagents_system/launch/vars_file.sh"
# shellcheck source=tfagents_system/launch/program_environment.sh
source "$tfagents_root/tfagents_system/launch/program_environment.sh" "$tfagents_root/tfagents_system/launch/join_script.sh" "${tfagents_arguments[@]}"

# shellcheck source=tfagents_system/launch/toolkit_python.sh
source "$tfagents_root/tfagents_system/launch/toolkit_python.sh"
tfagents_python=$(toolkit_python "$tfagents_root")
export PYTHONPATH="$tfagents_root${PYTHONPATH:+:$PYTHONPATH}:$PWD" PYTHONUNBUFFERED=1
export CUDA_VISIBLE_DEVICES=-1 TF_CPP_MIN_LOG_LEVEL=3
# Signals reach the supervisor itself: it replaces this shell.
exec "$tfagents_python" -P -m tfagents_system.launch.join --vars_file "$tfagents_vars" "${tfagents_options[@]}"
