#!/usr/bin/env bash
# Joins workers of this machine to a run elsewhere, see cluster/join.py. Called by `sac join`, and by jobs on several nodes.
set -euo pipefail

tfagents_root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
readonly tfagents_launch=$tfagents_root/tfagents_system/launch
# shellcheck source=tfagents_system/launch/launcher.sh
source "$tfagents_launch/launcher.sh"
tfagents_arguments=("$@")
if [[ " $* " != *" -h "* && " $* " != *" --help "* ]]; then
  (($#)) && [[ $1 != -* ]] || fail "the vars file comes first, as in sac join my_vars.sh --to RUN (--help says more)"
  tfagents_vars=$1
  # shellcheck source=tfagents_system/launch/vars_file.sh
  source "$tfagents_launch/vars_file.sh"
  surround "$tfagents_launch/join_script.sh" "${tfagents_arguments[@]}"
  tfagents_arguments=(--vars-file "$tfagents_vars" "${tfagents_arguments[@]:1}")
fi
export CUDA_VISIBLE_DEVICES=-1 TF_CPP_MIN_LOG_LEVEL=3
become_supervisor "$tfagents_root" tfagents_system.cluster.join "${tfagents_arguments[@]}"
