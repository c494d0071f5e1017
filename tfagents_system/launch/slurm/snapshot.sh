# shellcheck shell=bash
# Freezes what a job runs: nothing that is edited while it waits, runs or is requeued changes it. Sourced by submit.sh.
#
#   snapshot/<time>/package/        this repository's programs; package.commit and package.diff say what they are
#   snapshot/<time>/params/         the folder of SAC_PARAMS
#   snapshot/<time>/config.json     SAC_CONFIG, and grid.json SAC_GRID
#   snapshot/<time>/variables.sh    the variables as they were resolved
#   snapshot/<time>/job.sbatch      the job script

readonly MOST_FILES=5000 LOOK_SECS=20
readonly PACKAGE=(run_script.sh train_script.sh join_script.sh setup.sh submit.sh pyproject.toml requirements.lock config tfagents_system)
# What the vars file may name and only the job knows: it stays a reference.
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

# Lines `BYTES ./PATH` of the files beside the params file, links followed; without what is hidden or made by programs,
# environments, runs and this repository.
files_of_params() { # FOLDER
  # shellcheck disable=SC2016
  local is_foreign='test -e "$1/pyvenv.cfg" -o -e "$1/conda-meta" -o -e "$1/run.json" -o "$1/tfagents_system" -ef "$2"'
  (
    cd "$1"
    timeout "$LOOK_SECS" find -L . -mindepth 1 -type d \( -name '.*' -o -name __pycache__ -o -name logs -o -name node_modules \
      -o -path "./${tfagents_exp_dir#"$1"/}" -o -path "./${tfagents_submit_dir#"$1"/}" \
      -o -exec sh -c "$is_foreign" sh '{}' "$tfagents_root/tfagents_system" \; \) -prune \
      -o -type f ! -name '.*' ! -name $'*\n*' -printf '%s ./%P\n'
  )
}

check_params_folder() {
  local most_mb=${SAC_SNAPSHOT_MB:-100} params folder listing count bytes
  params=$(find_file SAC_PARAMS) && [[ $most_mb =~ ^[0-9]+$ ]] || return 0
  if is_in_package "$params"; then return; fi
  folder=${params%/*}
  # More than `head` takes is too much already; find then ends by SIGPIPE, or by its time limit.
  listing=$(files_of_params "$folder" 2>/dev/null | head -n $((MOST_FILES + 1)) || true)
  read -r count bytes < <(awk '{bytes += $1} END {print NR, int(bytes / 1048576)}' <<<"$listing")
  if ((count > MOST_FILES || bytes >= most_mb)); then
    if ((count > MOST_FILES)); then count="more than $MOST_FILES"; fi
    finding "the folder of SAC_PARAMS is copied for the job, and $folder has $count files with $bytes MiB or more (at most" \
      "$MOST_FILES, and SAC_SNAPSHOT_MB=$most_mb): move ${params##*/} and what it imports into a folder of their own"
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

copy_params() { # TARGET -> prints the path of the copied params file
  local params
  params=$(find_file SAC_PARAMS)
  if is_in_package "$params"; then
    echo "$1/package/${params#"$tfagents_root"/}" && return
  fi
  mkdir -p "$1/params"
  files_of_params "${params%/*}" | cut -d' ' -f2- | tar -C "${params%/*}" --dereference -cf - -T - \
    | tar -C "$1/params" -xf -
  echo "$1/params/${params##*/}"
}

write_variables() { # TARGET PARAMS
  local name
  echo "# What $tfagents_vars said on $(date '+%F %T')."
  for name in $(compgen -A variable SAC_) PYTHONPATH VIRTUAL_ENV CONDA_PREFIX; do
    case $name in
      SAC_PARAMS) echo "SAC_PARAMS=$(quoted "$2")" ;;
      SAC_CONFIG) echo "SAC_CONFIG=$(quoted "$1/config.json")" ;;
      SAC_GRID) if [[ -e $1/grid.json ]]; then echo "SAC_GRID=$(quoted "$1/grid.json")"; fi ;;
      SAC_EXP_DIR) ;;
      SAC_ENV_PYTHON | SAC_PACKED_ENV) echo "$name=$(quoted "$(find_file "$name" || echo "${!name}")")" ;;
      SAC_REPLAY_DIR) echo "$name=$(quoted "$(absolute "$SAC_REPLAY_DIR")")" ;;
      *) if [[ -n ${!name:-} ]]; then echo "$name=$(quoted "${!name}")"; fi ;;
    esac
  done
  echo "SAC_EXP_DIR=$(quoted "$tfagents_exp_dir")"
  if ((tfagents_nodes > 1)) && [[ -z $tfagents_add ]]; then # As many workers on each node, the first one's are its own.
    echo "SAC_LOCAL_WORKERS=$SAC_NUM_COLLECT_WORKERS"
    echo "SAC_NUM_COLLECT_WORKERS=$((SAC_NUM_COLLECT_WORKERS * tfagents_nodes))"
    echo "SAC_GATEWAY_PORT=${SAC_GATEWAY_PORT:-0}"
  fi
}

# Relative to the repository, as run directories are; what begins with a reference is left as it is.
absolute() { # PATH
  local path=${1/#\~\//$HOME/}
  [[ $path == /* || $path == @* ]] || path=$tfagents_root/$path
  echo "$path"
}

write_snapshot() { # TARGET
  local params
  mkdir -p "$1" || fail "$1 can't be made: set SAC_EXP_DIR to a folder that is yours"
  copy_package "$1"
  cp -- "$(find_file SAC_CONFIG)" "$1/config.json"
  if [[ -n ${SAC_GRID:-} ]]; then cp -- "$(find_file SAC_GRID)" "$1/grid.json"; fi
  params=$(copy_params "$1")
  (umask 077 && write_variables "$1" "$params" >"$1/variables.sh") # People put tokens into SAC_JOB_PRELUDE.
  job_script "$1" >"$1/job.sbatch"
}
