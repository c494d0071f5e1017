#!/usr/bin/env bash
# Submits a run to SLURM, see cluster/submit.py: this finds a Python for it, which needs no package.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
# In a copy of the repository without links this file lies at its top.
[[ -d $root/tfagents_system ]] || root=$(cd "$root/../.." && pwd)
start='import sys; sys.path.insert(0, sys.argv.pop(1)); from tfagents_system.cluster import submit; submit.exit_with(submit.main)'
for python in python3 python3.11 "${SAC_PYTHON:-python}" "$root/.venv/bin/python"; do
  if "$python" -E -S -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    exec "$python" -E -P -c "$start" "$root" "$@" # Without PYTHONPATH, which is the run's.
  fi
done
echo "error: there is no Python 3.11 or later here: load the module of one, or name it in SAC_PYTHON" >&2
exit 2
