#!/usr/bin/env bash
# Format, lint, spelling, types, shell scripts and all tests; what CI runs.
set -euo pipefail

usage() {
  cat <<'END'
Usage: ./run_tests.sh [--require] [--area FOLDER] [PYTEST_ARGUMENT...]

Checks format, lint, spelling, types and shell scripts, and runs all tests. As root it first installs missing Debian packages.
  --require        a test fails, instead of being skipped, if the machine lacks what it needs
  --area FOLDER    the fast tests of one folder of tests/ alone, such as replay or launch: seconds
  PYTEST_ARGUMENT  instead of `-n PROCESSES --dist loadfile`, for example -m 'not slow', or tests/launch/test_cpus.py
END
}

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
cd "$root"
area='' require=()
while (($#)); do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --require) require=(--require) && shift ;;
    --area)
      area=${2:-}
      if [[ ! -d tests/$area || -z $area ]]; then
        echo "error: --area ${area:-(nothing)} is no folder of tests/: $(cd tests && printf '%s ' */)" >&2
        exit 2
      fi
      shift 2
      ;;
    *) break ;;
  esac
done

types='' types_pid='' policy=''
trap 'rm -f ${types:+"$types"} ${policy:+"$policy"}; [[ -z $types_pid ]] || kill "$types_pid" 2>/dev/null || true' EXIT

# Tests open pages in Chromium, pin with taskset, render by EGL or OSMesa, submit to a SLURM of their own, run in containers, and log in by ssh.
has_library() { ldconfig -p 2>/dev/null | grep -q "$1" || PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q "$1"; }
packages=()
for pair in taskset:util-linux slurmctld:slurm-wlm munged:munge chromium-headless-shell:chromium-headless-shell bwrap:bubblewrap sshd:openssh-server; do
  PATH=$PATH:/usr/sbin command -v "${pair%:*}" >/dev/null || packages+=("${pair#*:}")
done
has_library libEGL.so.1 || packages+=(libegl1)
has_library libGL.so.1 || packages+=(libgl1)
has_library libOSMesa.so || packages+=(libosmesa6)
if ((${#packages[@]})); then
  if ((EUID == 0)) && command -v apt-get >/dev/null; then
    # No daemon of these packages must run: tests start their own.
    export DEBIAN_FRONTEND=noninteractive
    if [[ ! -e /usr/sbin/policy-rc.d ]]; then
      policy=/usr/sbin/policy-rc.d
      printf '#!/bin/sh\nexit 101\n' >"$policy"
      chmod +x "$policy"
    fi
    timeout 300 apt-get update -qq || true
    for package in "${packages[@]}"; do
      timeout 300 apt-get install -y -qq --no-install-recommends "$package" >/dev/null \
        || echo "note: $package could not be installed: tests that need it may fail" >&2
    done
  else
    echo "note: missing for some tests: ${packages[*]} (apt-get install ${packages[*]})" >&2
  fi
fi

source tfagents_system/launch/shell_variables.sh && clean_shell
python=$(./setup.sh --print-python --dev)
tools=$(dirname "$python")
step() {
  echo "== $*"
  "$@"
}
# Whole files at once, in the order of tests/conftest.py, three processes for two CPUs: real runs wait for much of their
# time, and each process takes half a minute of CPU time to import all that tests need.
processes=$((($(nproc) * 3 + 1) / 2))
parallel=(-n "$((processes < 8 ? processes : 8))" --dist loadfile --no-loadscope-reorder)
if [[ $area ]]; then
  PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" step "$python" -m pytest "tests/$area" -m 'not slow' "${parallel[@]}" "${require[@]}" "$@"
  exit
fi
# Tests and the thousand programs that they start would all compile what they import if PYTHONDONTWRITEBYTECODE is set.
export PYTHONDONTWRITEBYTECODE='' PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
"$python" -m compileall -q tfagents_system tests benchmarks
step "$python" -m ruff format --check .
step "$python" -m ruff check .
step "$tools/codespell" .github .ci ./*.md ./*.sh ./*.toml benchmarks config container docs tests tfagents_system
step "$tools/shellcheck" --external-sources --check-sourced tests/cluster/golden/job.sbatch submit.sh run_script.sh tfagents_system/launch/join_script.sh tfagents_system/launch/sac.sh train_script.sh setup.sh run_tests.sh run_benchmarks.sh .ci/run tests/*.sh training_variables*.sh

# Types take a minute of one CPU: they use what the tests leave idle, and are reported after them.
types=$(mktemp)
nice -n 19 "$python" -m mypy >"$types" 2>&1 &
types_pid=$!
if (($# == 0)); then set -- "${parallel[@]}" --durations=30; fi
status=0
step "$python" -m pytest "${require[@]}" "$@" || status=$?
echo "== $python -m mypy"
wait "$types_pid" || status=1
types_pid=''
cat "$types"
exit "$status"
