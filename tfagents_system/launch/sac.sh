#!/usr/bin/env bash
# `sac` in the environment that setup.sh has made: cleans what the shell carries before any Python starts.
set -euo pipefail

root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..
# shellcheck source=tfagents_system/launch/shell_variables.sh
source "$root/tfagents_system/launch/shell_variables.sh"
clean_shell
lead_python_path "$(cd "$root" && pwd)"
exec "$root/.venv/bin/python" -P -m tfagents_system "$@"
