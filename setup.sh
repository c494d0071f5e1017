#!/usr/bin/env bash
# Finds or makes the Python environment with the pinned packages.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: ./setup.sh [--print-python] [--dev]

An activated conda or virtual environment that holds the packages pinned in pyproject.toml is used as it is; nothing is
ever installed into it. Otherwise .venv is made from requirements.lock, with uv or pip. It needs Python 3.11.

  --print-python  print the environment's Python on stdout (all else goes to stderr); in a SLURM job nothing is installed
  --dev           an activated environment must hold the development tools and extras, too
HELP
}

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
readonly root uv_version=0.13.8 venv=$root/.venv lock=$root/requirements.lock
readonly ours=$venv/.made_by_setup complete=$venv/.complete
say() { echo "setup: $*" >&2; }
fail() { echo "error: $*" >&2 && exit 2; }

holds_packages() { # PYTHON [--dev]
  [[ -x $1 ]] && "$1" -P "$root/tfagents_system/launch/pinned_packages.py" "${@:2}" >/dev/null 2>&1
}

find_python() {
  local candidate
  for candidate in python3.11 python3 python; do
    "$candidate" -c 'import sys; sys.version_info[:2] == (3, 11) or exit(1); print(sys.executable)' 2>/dev/null && return
  done
  # A Python that uv installed is not on PATH.
  command -v uv >/dev/null && uv python find 3.11 2>/dev/null && return
  fail "Python 3.11 is not installed: install it (apt-get install python3.11 python3.11-venv, conda create -n sac" \
    "python=3.11, or uv python install 3.11)"
}

is_complete() { [[ -f $complete && $(<"$complete") == "$lock_hash" ]]; }

install_packages() {
  local base uv
  base=$(find_python)
  say "installing the pinned packages into $venv; this takes a few minutes, once"
  mkdir -p "$venv"
  touch "$ours"
  rm -f "$complete"
  if uv=$(command -v uv); then
    "$uv" venv --quiet --allow-existing --python "$base" "$venv" >&2
  else
    "$base" -m venv "$venv" >&2 || fail "$base cannot make virtual environments: apt-get install python3.11-venv"
    uv=$venv/bin/uv
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version" >&2 || uv=
  fi
  local pip=("$venv/bin/python" -m pip install --disable-pip-version-check)
  if [[ -n $uv ]]; then pip=("$uv" pip install --quiet --python "$venv/bin/python" --compile-bytecode); fi
  "${pip[@]}" --no-deps --requirement "$lock" >&2
  holds_packages "$venv/bin/python" --dev || fail "$venv does not hold the pinned packages after installing them"
  echo "$lock_hash" >"$complete.new"
  mv "$complete.new" "$complete" # Last: an interrupted installation is never taken for a whole one.
}

make_venv() {
  if [[ -n ${SLURM_JOB_ID:-} ]] && ((print_python)); then # Jobs would race, and nodes often reach no package index.
    holds_packages "$venv/bin/python" "${dev[@]}" && return
    fail "$venv does not hold the pinned packages, and jobs install nothing: run ./setup.sh on the login node first"
  fi
  exec 9<"$lock"
  flock --nonblock 9 || say "waiting for another setup.sh to finish"
  flock --timeout 1800 9 || fail "another setup.sh has been running for 30 minutes: end it, then try again"
  is_complete && return
  if [[ -L $venv || (-e $venv && ! -e $ours) ]]; then # A link may lead to the one of another checkout.
    holds_packages "$venv/bin/python" --dev && return
    fail "$venv was not made by setup.sh here and does not hold the pinned packages: move it away, or activate another"
  fi
  if [[ -e $ours && ! -e $complete ]]; then
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

lock_hash=$(sha256sum <"$lock")
python=
for prefix in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
  [[ -n $prefix && $prefix != "$venv" ]] || continue
  holds_packages "$prefix/bin/python" "${dev[@]}" && python=$prefix/bin/python && break
  say "$prefix is active but does not hold the pinned packages: it is left as it is, $venv is used"
done
[[ -n $python ]] || is_complete || make_venv
python=${python:-$venv/bin/python}
if ((print_python)); then echo "$python"; else say "ready: $python"; fi
