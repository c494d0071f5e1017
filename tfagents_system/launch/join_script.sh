#!/usr/bin/env bash
# Joins workers of this machine to a run elsewhere, see cluster/join.py. Called by `sac join`, and by jobs on several nodes.
set -euo pipefail

fail() {
  echo "error: $*" >&2
  exit 2
}

tfagents_root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
# shellcheck source=tfagents_system/launch/toolkit_python.sh
source "$tfagents_root/tfagents_system/launch/toolkit_python.sh"
tfagents_arguments=("$@") tfagents_vars=''
if [[ " $* " != *" -h "* && " $* " != *" --help "* ]]; then
  (($#)) && [[ $1 != -* ]] || fail "the vars file comes first, as in sac join my_vars.sh --to RUN (--help says more)"
  [[ -f $1 && -r $1 ]] || fail "vars file $1 is missing or cannot be read: give the path of a file such as training_variables.sh"
  tfagents_vars=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
  # shellcheck source=tfagents_system/launch/vars_file.sh
  source "$tfagents_root/tfagents_system/launch/vars_file.sh"
  # shellcheck source=tfagents_system/launch/program_environment.sh
  source "$tfagents_root/tfagents_system/launch/program_environment.sh" "$tfagents_root/tfagents_system/launch/join_script.sh" "${tfagents_arguments[@]}"
  tfagents_arguments=(--vars_file "$tfagents_vars" "${tfagents_arguments[@]:1}")
fi
export CUDA_VISIBLE_DEVICES=-1 TF_CPP_MIN_LOG_LEVEL=3
become_supervisor "$tfagents_root" tfagents_system.cluster.join "${tfagents_arguments[@]}"
