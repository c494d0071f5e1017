#!/usr/bin/env bash
# Finds or makes the Python environment with the required packages.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: ./setup.sh [--print-python] [--dev]

An activated conda or virtual environment that holds the packages pinned in pyproject.toml is used as it is, or a Python
on PATH; nothing is ever installed into them. Otherwise .venv is made from requirements.lock, with uv or pip, and holds this
checkout as an editable package. It needs Python 3.11. SAC_PYTHON names the Python to use.

  --print-python  print the environment's Python on stdout (all else goes to stderr); in a SLURM job nothing is installed
  --dev           an activated environment must hold the development tools and extras, too
HELP
}

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
readonly root uv_version=0.13.8 venv=$root/.venv lock=$root/requirements.lock
readonly ours=$venv/.made_by_setup complete=$venv/.complete
say() { echo "setup: $*" >&2; }
fail() { echo "error: $*" >&2 && exit 2; }

# shellcheck source=tfagents_system/launch/environment.sh
source "$root/tfagents_system/launch/environment.sh"

# In a container the Python that the environment was made with may be missing.
is_complete() { [[ -x $venv/bin/python && -f $complete && $(<"$complete") == "$lock_hash" ]]; }

# Beside the environment and for writing: NFS locks nothing that was opened for reading, and the checkout may be read-only.
lock_venv() {
  local code=0
  flock --nonblock 9 2>/dev/null || say "waiting for another setup.sh to finish"
  flock --timeout 1800 --conflict-exit-code 75 9 || code=$?
  ((code != 75)) || fail "another setup.sh has been running for 30 minutes: end it, then try again"
  ((code == 0)) || fail "$venv.lock can't be locked on this file system: name a Python that holds the packages (SAC_PYTHON)"
}

make_venv() {
  if [[ -n ${SLURM_JOB_ID:-} ]] && ((print_python)); then # Jobs would race, and nodes often reach no package index.
    holds_packages "$venv/bin/python" && return
    fail "$venv does not hold the required packages, and jobs install nothing: run ./setup.sh on the login node first," \
      "or name a Python that holds them (SAC_PYTHON)"
  fi
  if ! { mkdir -p "$(dirname "$venv")" && exec 9>>"$venv.lock"; } 2>/dev/null; then
    holds_packages "$venv/bin/python" && return
    fail "$venv can't be made, $(dirname "$venv") can't be written: activate an environment that holds the" \
      "required packages, or name its Python (SAC_PYTHON)"
  fi
  lock_venv
  is_complete && return
  if [[ -L $venv || (-e $venv && ! -e $ours) ]]; then # A link may lead to the one of another checkout.
    dev=(--dev)
    holds_packages "$venv/bin/python" && return
    fail "$venv was not made by setup.sh here and does not hold the required packages: move it away, or activate another"
  fi
  # Runs may use one that holds the packages: it is installed in place.
  if [[ -e $ours && ! -e $complete ]] && ! holds_packages "$venv/bin/python"; then
    say "an earlier installation was interrupted: starting over" && rm -rf "$venv"
  fi
  install_packages
}

print_python=0 dev=()
for argument in "$@"; do
  case $argument in
    --print-python) print_python=1 ;;
    --dev) dev=(--dev) ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
done

clean_shell
lock_hash=$(sha256sum <"$lock")
if [[ -n ${SAC_PYTHON:-} ]]; then
  python=$(given_python)
else
  python=$(active_python "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}") || python=
  # What an image has comes before what its host has.
  if [[ -z $python && -n ${TFAGENTS_CONTAINER:-} ]]; then
    python=$(python_on_path || active_python "${TFAGENTS_HOST_VIRTUAL_ENV:-}" "${TFAGENTS_HOST_CONDA_PREFIX:-}") || python=
  fi
  if [[ -z $python ]] && ! is_complete; then python=$(python_on_path) || make_venv; fi
fi
python=${python:-$venv/bin/python}
if ((print_python)); then echo "$python"; else say "ready: $python"; fi
