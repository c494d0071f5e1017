#!/usr/bin/env bash
# Runs every benchmark against its peers; results go to benchmarks/results and benchmarks/README.md.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: ./run_benchmarks.sh [--quick] [--no-peers] [--only NAME]...

  --quick      about 7 minutes: shows that the benchmarks run, writes no results
  --no-peers   without SBX and Stable-Baselines3; otherwise .venv-peers is made from benchmarks/peers.txt, once
  --only NAME  one benchmark, a module of benchmarks/ such as update; may be given several times

No benchmark fails because of a time. Exit codes: 0 all ran, 1 some did not, 2 wrong usage.
HELP
}

fail() {
  echo "error: $*" >&2
  exit 2
}

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
readonly root venv=$root/.venv-peers pins=$root/benchmarks/peers.txt
peers=1 options=() names=()
while (($#)); do
  case $1 in
    --quick) options+=(--quick) ;;
    --no-peers) peers=0 ;;
    --only)
      (($# > 1)) || fail "--only needs a name"
      names+=("$2") && shift
      ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done
if ((${#names[@]})); then options+=(--only "${names[@]}"); fi

make_peers() {
  local pins_hash
  pins_hash=$(sha256sum <"$pins")
  [[ -f $venv/.complete && $(<"$venv/.complete") == "$pins_hash" ]] && return
  [[ ! -e $venv || -e $venv/.made_by_run_benchmarks ]] \
    || fail "$venv was not made by run_benchmarks.sh: move it away, or give --no-peers"
  echo "installing the peers into $venv; this takes a few minutes, once" >&2
  "$python" -m venv --clear "$venv" >&2
  touch "$venv/.made_by_run_benchmarks"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$pins" >&2
  echo "$pins_hash" >"$venv/.complete" # Last: an interrupted installation is never taken for a whole one.
}

# shellcheck source=tfagents_system/launch/shell_variables.sh
source "$root/tfagents_system/launch/shell_variables.sh"
clean_shell
python=$("$root/setup.sh" --print-python)
export PYTHONPATH="$root" PYTHONUNBUFFERED=1
if ((peers)); then
  make_peers
  options+=(--peers_python "$venv/bin/python")
fi
exec "$python" -m benchmarks.run "${options[@]}"
