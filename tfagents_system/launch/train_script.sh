#!/usr/bin/env bash
# Becomes the one process of a run that checks, prepares, forks the roles and supervises them. Called by run_script.sh.
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  cat <<'HELP'
usage: ./train_script.sh [OPTION]... [--vars-file VARS.sh]

Starts the run that the SAC_ variables in the environment describe; run_script.sh sets them and calls this at its end, and
its --help says the options. VARS.sh is named in messages and is not read.
HELP
  exit 0
fi
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
# In a copy of the repository without links this file lies at its top.
[[ -d $root/tfagents_system ]] || root=$(cd "$root/../.." && pwd)
# shellcheck source=tfagents_system/launch/launcher.sh
source "$root/tfagents_system/launch/launcher.sh"
# A sweep says which GPU is this run's.
export TFAGENTS_CUDA_VISIBLE_DEVICES=${TFAGENTS_CUDA_VISIBLE_DEVICES-${CUDA_VISIBLE_DEVICES-all}} CUDA_VISIBLE_DEVICES=-1
become_supervisor "$root" tfagents_system.launch.start "$@"
