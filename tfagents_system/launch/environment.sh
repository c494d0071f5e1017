# shellcheck shell=bash
# Finds a Python that holds the required packages, or installs them into $venv. Sourced by setup.sh, which sets the variables
# and has `say` and `fail`.

# shellcheck source=tfagents_system/launch/shell_variables.sh
source "$root/tfagents_system/launch/shell_variables.sh"

missing_packages() ( # PYTHON: prints them; the exit code is 0 if there are none
  lead_python_path "$root"
  [[ -x $1 ]] && "$1" -P "$root/tfagents_system/launch/required_packages.py" "${dev[@]}" 2>/dev/null
)
holds_packages() { missing_packages "$1" >/dev/null; } # PYTHON

given_python() { # SAC_PYTHON, as a path
  local path missing version
  path=$(type -P -- "$SAC_PYTHON") && [[ $path == /* ]] \
    || fail "SAC_PYTHON=$SAC_PYTHON is no program here: give the absolute path, or the name on PATH, of a Python 3.11"
  if ! missing=$(missing_packages "$path"); then
    version=$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)
    [[ $version == 3.11 ]] || fail "SAC_PYTHON=$SAC_PYTHON is no Python 3.11${version:+ but $version}: give the path of one"
    fail "SAC_PYTHON=$SAC_PYTHON does not hold the required packages: ${missing//$'\n'/, }. Install them there" \
      "($path -m pip install --no-deps -r $lock), or unset SAC_PYTHON"
  fi
  echo "$path"
}

active_python() { # PREFIX...: the Python of the first environment that holds the packages
  local prefix
  for prefix; do
    [[ -n $prefix && $prefix != "$venv" ]] || continue
    holds_packages "$prefix/bin/python" && echo "$prefix/bin/python" && return
    say "$prefix is active but does not hold the required packages: it is left as it is"
  done
  return 1
}

python_on_path() {
  local name path
  for name in python python3 python3.11; do
    path=$(type -P "$name") && holds_packages "$path" && echo "$path" && return
  done
  return 1
}

base_python() {
  local candidate
  for candidate in python3.11 python3 python; do
    "$candidate" -c 'import sys; sys.version_info[:2] == (3, 11) or exit(1); print(sys.executable)' 2>/dev/null && return
  done
  # A Python that uv installed is not on PATH.
  command -v uv >/dev/null && uv python find 3.11 2>/dev/null && return
  fail "Python 3.11 is not installed: install it (apt-get install python3.11 python3.11-venv, conda create -n sac" \
    "python=3.11, or uv python install 3.11)"
}

install_packages() {
  local base uv count
  unset PYTHONPATH # No module there may hide one of pip's.
  base=$(base_python)
  count=$(grep -cE '^[[:alnum:]]' "$lock" || true)
  say "making $venv with $base, then installing $count pinned packages there: about 4 GB on disk, a few minutes, once"
  mkdir -p "$venv"
  touch "$ours"
  rm -f "$complete"
  if uv=$(command -v uv); then
    "$uv" venv --quiet --allow-existing --python "$base" "$venv" >&2
  else
    "$base" -P -m venv "$venv" >&2 || fail "$base cannot make virtual environments: apt-get install python3.11-venv"
    uv=$venv/bin/uv
    say "installing uv $uv_version, which installs the others"
    "$venv/bin/python" -P -m pip install --quiet --disable-pip-version-check "uv==$uv_version" >&2 || uv=
  fi
  local pip=("$venv/bin/python" -P -m pip install --disable-pip-version-check)
  if [[ -n $uv ]]; then
    pip=("$uv" pip install --python "$venv/bin/python")
  fi
  "${pip[@]}" --no-deps --requirement "$lock" >&2
  # The package itself, of this checkout: scripts and notebooks anywhere import it, and there is a command `sac`.
  "${pip[@]}" --no-deps --no-build-isolation --editable "$root" >&2
  # A Python that finds PYTHONHOME of another one does not even start.
  ln -sf "$root/tfagents_system/launch/sac.sh" "$venv/bin/sac"
  say "checking what was installed"
  # Compiles what runs import, a sixth of all that uv could compile: the environment may be read-only to those who use it.
  env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c 'from tfagents_system import sac_collect, sac_replay_buffer, sac_train' >/dev/null 2>&1 || true
  dev=(--dev)
  holds_packages "$venv/bin/python" || fail "$venv does not hold the required packages after installing them"
  echo "$lock_hash" >"$complete.new"
  mv "$complete.new" "$complete" # Last: an interrupted installation is never taken for a whole one.
  say "installed in $SECONDS s"
}
