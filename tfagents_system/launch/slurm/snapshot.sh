# shellcheck shell=bash
# Freezes what a job runs: no edit while it waits, runs or is requeued changes it. Sourced by submit.sh.
#
#   snapshot/<time>/package/        this repository's programs; package.commit and package.diff identify them
#   snapshot/<time>/params/         the folder of SAC_PARAMS
#   snapshot/<time>/config.json     SAC_CONFIG, and grid.json SAC_GRID
#   snapshot/<time>/variables.sh    the variables as they were resolved, and others that refer to the job
#   snapshot/<time>/job.sbatch      the job script

readonly LOOK_SECS=20
# Installed with pip, the toolkit is its package alone.
PACKAGE=(tfagents_system)
for tfagents_part in setup.sh pyproject.toml requirements.lock config; do
  if [[ -f $tfagents_root/setup.sh && -e $tfagents_root/$tfagents_part ]]; then PACKAGE+=("$tfagents_part"); fi
done
readonly PACKAGE
# The vars file may name these, but only the job knows them: they stay references.
readonly LATE=(SLURM_JOB_ID SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_TMPDIR TMPDIR)
# shellcheck disable=SC2016
readonly LATE_VALUES=('${SLURM_JOB_ID:-}' '${SLURM_ARRAY_JOB_ID:-}' '${SLURM_ARRAY_TASK_ID:-}'
  '${SLURM_TMPDIR:-${TMPDIR:-/tmp}}' '${TMPDIR:-/tmp}')

quoted() { # TEXT -> as one word of shell code
  local quote="'\\''" word k
  word="'${1//\'/$quote}'"
  for k in "${!LATE[@]}"; do
    quote="'\"${LATE_VALUES[k]}\"'"
    word=${word//@${LATE[k]}@/$quote}
  done
  echo "$word"
}

all_quoted() { # WORD... -> each after a space
  local word
  for word; do printf ' %s' "$(quoted "$word")"; done
}

is_late() { # TEXT
  local name
  for name in "${LATE[@]}"; do
    if [[ $1 == *@$name@* ]]; then return 0; fi
  done
  return 1
}

# What the vars file itself has made of the job's folders.
keep_scratch() { # -> tfagents_scratch
  local name
  tfagents_scratch=()
  for name in SLURM_TMPDIR TMPDIR; do
    [[ ${!name-} == "@$name@" ]] || tfagents_scratch+=("$name=${!name-}")
  done
}

# Exported variables, the user's own among them, that refer to what only the job knows. Not the paths of programs and
# libraries, without which nothing starts, here or there.
late_names() {
  local name
  for name in $(compgen -e); do
    case $name in
      PATH | LD_LIBRARY_PATH) ;;
      *) if is_late "${!name-}"; then echo "$name"; fi ;;
    esac
  done
}

# Programs started from here on do not get them: only in the job, from variables.sh, have they their values. Functions
# of submit.sh see them still, also those that look whether there is a prelude.
forget_late() {
  local name
  for name in $(late_names); do
    case $name in
      SAC_PYTHON | VIRTUAL_ENV | CONDA_PREFIX) ;; # setup.sh tells that this machine lacks such a Python.
      *) export -n "${name?}" ;;
    esac
  done
}

# The line of variables.sh that exports one of the user's own. Inside SAC_EXEC_PREFIX that file is read once more: what
# the prelude and the container made of the variable stays.
late_assignment() { # NAME VALUE
  echo "[[ -n \${TFAGENTS_SURROUNDED:+\${$1-}} ]] || export $1=$(quoted "$2")"
}

# A Python for what needs no package: 3.9 will do.
login_python() { # -> its path; fails if there is none
  local python
  for python in python3 /usr/libexec/platform-python "${SAC_PYTHON:-python}" "$tfagents_root/.venv/bin/python"; do
    if "$python" -S -E -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
      echo "$python" && return
    fi
  done
  return 1
}

# As a run copies it (run_files/params_folder.py). Prints the files, and copies them if there is a target.
params_folder() { # FOLDER [TARGET]
  local secret secrets=()
  for secret in "${SAC_PASSWORD_FILE:-}" "${SAC_CREDENTIALS_DIR:-}"; do
    if [[ -n $secret ]]; then secrets+=(--skip "$(absolute "$secret")"); fi
  done
  "$tfagents_python" -S -E "$tfagents_root/tfagents_system/run_files/params_folder.py" --skip "$tfagents_exp_dir" --skip "$tfagents_submit_dir" --skip "$tfagents_logs_dir" \
    ${secrets[@]+"${secrets[@]}"} "$@"
}

# Sets tfagents_copied, the files that are copied.
check_params_folder() {
  local params
  tfagents_copied=''
  params=$(find_file SAC_PARAMS) || return 0
  if is_in_package "$params"; then return; fi
  if [[ -z $tfagents_python ]]; then
    finding "there is no Python here that copies the folder of SAC_PARAMS for the job: load the module of one, 3.9 or later"
  elif ! tfagents_copied=$(params_folder "${params%/*}" 2>&1); then
    finding "the folder of SAC_PARAMS is copied for the job, and $tfagents_copied: move ${params##*/} and what it imports" \
      "into a folder of their own"
  fi
}

is_in_package() { # FILE: it is copied with the package
  [[ $1 == "$tfagents_root"/tfagents_system/* ]]
}

copy_package() { # TARGET
  mkdir -p "$1/package"
  tar -C "$tfagents_root" --exclude=__pycache__ -cf - "${PACKAGE[@]}" | tar -C "$1/package" -xf -
  # The environment stays where it is: jobs install nothing.
  if [[ -e $tfagents_root/.venv ]]; then ln -s "$tfagents_root/.venv" "$1/package/.venv"; fi
  git -C "$tfagents_root" rev-parse HEAD >"$1/package.commit" 2>/dev/null || echo "no git repository" >"$1/package.commit"
  timeout "$LOOK_SECS" git -C "$tfagents_root" diff HEAD >"$1/package.diff" 2>/dev/null || true
}

copied_params() { # TARGET -> the path of the copied params file
  local params
  params=$(find_file SAC_PARAMS)
  if is_in_package "$params"; then echo "$1/package/${params#"$tfagents_root"/}"; else echo "$1/params/${params##*/}"; fi
}

variables_script() { # TARGET
  local name params
  params=$(copied_params "$1")
  echo "# What $tfagents_vars said on $(date '+%F %T')."
  for name in ${tfagents_scratch[@]+"${tfagents_scratch[@]}"}; do late_assignment "${name%%=*}" "${name#*=}"; done
  for name in $(compgen -A variable SAC_) PYTHONPATH VIRTUAL_ENV CONDA_PREFIX; do
    if [[ $name == SAC_* && ${!name:-} != *[![:space:]]* ]]; then # As if it were not set, whatever the job inherits.
      echo "$name=''"
      continue
    fi
    case $name in
      SAC_PARAMS) echo "SAC_PARAMS=$(quoted "$params")" ;;
      SAC_CONFIG) echo "SAC_CONFIG=$(quoted "$1/config.json")" ;;
      SAC_GRID) echo "SAC_GRID=$(quoted "$1/grid.json")" ;;
      SAC_EXP_DIR | SAC_LOGS_DIR) ;; # The one below says both.
      SAC_ENV_PYTHON) echo "$name=$(quoted "$(find_file "$name" || echo "${!name}")")" ;;
      SAC_FROM | SAC_EXPERT_POLICY) echo "$name=$(quoted "$(sources "${!name}")")" ;;
      SAC_REPLAY_DIR | SAC_CREDENTIALS_DIR | SAC_PASSWORD_FILE) echo "$name=$(quoted "$(absolute "${!name}")")" ;;
      SAC_MLFLOW_URI) echo "$name=$(quoted "$(mlflow_address "${!name}")")" ;;
      *) if [[ -n ${!name:-} ]]; then echo "$name=$(quoted "${!name}")"; fi ;;
    esac
  done
  for name in $(late_names); do
    case $name in
      SAC_* | PYTHONPATH | VIRTUAL_ENV | CONDA_PREFIX) ;; # Above.
      *) late_assignment "$name" "${!name}" ;;
    esac
  done
  echo "SAC_EXP_DIR=$(quoted "$tfagents_exp_dir")"
  variables_of_nodes
}

# Of a run on several nodes: as many workers on each; the first node's are the run's own.
variables_of_nodes() {
  if ((tfagents_nodes == 1)); then return; fi
  echo "SAC_LOCAL_WORKERS=$SAC_NUM_COLLECT_WORKERS"
  echo "SAC_NUM_COLLECT_WORKERS=$((SAC_NUM_COLLECT_WORKERS * tfagents_nodes))"
  echo "SAC_GATEWAY_PORT=${SAC_GATEWAY_PORT:-0}"
}

# Paths, or RUN@CHECKPOINT, separated by commas and spaces: as absolute ones, found as Python finds them.
sources() { # TEXT
  local source folder path sources found=()
  IFS=, read -ra sources <<<"$1"
  for source in ${sources[@]+"${sources[@]}"}; do
    source=${source#"${source%%[![:space:]]*}"} source=${source%"${source##*[![:space:]]}"}
    for folder in "$tfagents_vars_folder" "$PWD" "$tfagents_root"; do
      path=$(absolute "$source" "$folder")
      if [[ -e $path || ($source == *@* && -d ${path%@*}) ]]; then source=$path && break; fi
    done
    found+=("$source")
  done
  local IFS=,
  echo "${found[*]-}"
}

# sqlite:///FILE and file:FOLDER as settings/variable_values.py has them.
mlflow_address() { # URI
  case $1 in
    file:[!/]*) echo "file://$(absolute "${1#file:}")" ;;
    sqlite*:///[!/:?]*) echo "${1%%:*}:///$(absolute "${1#*:///}")" ;;
    *) echo "$1" ;;
  esac
}

# A path that begins with a reference stays as it is.
absolute() { # PATH
  local path=${1/#\~\//$HOME/}
  [[ $path == /* || $path == @* ]] || path=$PWD/$path
  if [[ $path == /* ]]; then realpath -ms -- "$path"; else echo "$path"; fi
}

write_snapshot() { # TARGET
  local params
  mkdir -p "$1" || fail "$1 can't be made: set SAC_LOGS_DIR to a folder that is yours"
  copy_package "$1"
  cp -- "$(find_file SAC_CONFIG)" "$1/config.json"
  if [[ -n ${SAC_GRID:-} ]]; then cp -- "$(find_file SAC_GRID)" "$1/grid.json"; fi
  params=$(find_file SAC_PARAMS)
  if ! is_in_package "$params"; then params_folder "${params%/*}" "$1/params" >/dev/null; fi
  (umask 077 && variables_script "$1" >"$1/variables.sh") # People put tokens into SAC_JOB_PRELUDE.
  job_script "$1" >"$1/job.sbatch"
}
