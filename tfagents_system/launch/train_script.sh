#!/usr/bin/env bash
# Starts the roles of a prepared run under taskset, restarts what dies, and stops all. Called by run_script.sh.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: ./train_script.sh [VARS.sh]

Expects the SAC_ variables in its environment and a run directory prepared by run_script.sh, which calls it at its end.
VARS.sh is named in messages and is not read.
HELP
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit 0
fi
if (($# > 1)); then
  usage >&2
  exit 2
fi

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
# In a copy of the repository without links this file lies at its top.
[[ -d $root/tfagents_system ]] || root=$(cd "$root/../.." && pwd)
# shellcheck source=tfagents_system/launch/toolkit_python.sh
source "$root/tfagents_system/launch/toolkit_python.sh"
# Prepare is run by the one that was found: its packages are looked at once.
python=${TFAGENTS_PYTHON:-$(toolkit_python "$root")}
unset TFAGENTS_PYTHON
case ${PYTHONPATH:-} in
  "$root" | "$root":*) ;;
  *) export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}:$PWD" ;;
esac
export PYTHONUNBUFFERED=1
# Signals reach the supervisor itself: it replaces this shell.
exec "$python" -P -m tfagents_system.launch.supervise ${1:+--vars_file "$1"}
