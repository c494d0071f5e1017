# shellcheck shell=bash
# What a run asks SLURM for. Sourced by submit.sh once the vars file is read.

readonly SPARE_CPUS=2 # For supervisor, fork server and the system.
readonly BASE_MB=1500 WORKER_MB=400 UNFORKED_MB=200 NEW_RING_MB=1000
readonly SIGNAL_SLACK_SECS=60 # SLURM checks time limits at such intervals.
readonly TASKS_AT_ONCE=10

finding() { tfagents_findings+=("$*"); }

require_whole() { # NAME MEANING [DEFAULT]
  local value=${!1:-${3:-}}
  if [[ -z $value ]]; then
    finding "$1 is missing ($2): add $1=1 to $tfagents_vars"
  elif ! [[ $value =~ ^[1-9][0-9]{0,5}$ ]]; then
    finding "$1=$value must be a whole number of at least 1 ($2)"
  fi
}

require_flag() { # NAME
  [[ ${!1:-0} == [01] ]] || finding "$1=${!1} must be 0 or 1"
}

# As run_script.sh looks for files: beside the vars file, in the current folder and in the repository.
find_file() { # NAME -> prints an absolute path
  local text=${!1:-} folder
  text=${text/#\~\//$HOME/}
  for folder in "$tfagents_vars_folder" "$PWD" "$tfagents_root"; do
    [[ $text != /* ]] || folder=
    if [[ -f ${folder:+$folder/}$text ]]; then
      echo "$(cd "$(dirname "${folder:+$folder/}$text")" && pwd)/${text##*/}" && return
    fi
  done
  return 1
}

require_file() { # NAME MEANING EXAMPLE
  if [[ -z ${!1:-} ]]; then
    finding "$1 is missing ($2): add $1=$3 to $tfagents_vars"
  elif ! find_file "$1" >/dev/null; then
    finding "$1=${!1} must be an existing file: it is neither beside the vars file, nor in $PWD, nor in $tfagents_root"
  elif is_ambiguous "$1"; then
    finding "$1=${!1} must be one file, there is one beside the vars file and another one in $PWD: give the absolute path" \
      "of the one that is meant"
  fi
}

is_ambiguous() { # NAME: the current folder has another file of that name than the vars file's
  local text=${!1}
  [[ $text != [/~]* && $PWD != "$tfagents_root" && -f $PWD/$text && -f $tfagents_vars_folder/$text ]] \
    && ! [[ $PWD/$text -ef $tfagents_vars_folder/$text ]]
}

# The grid as one of a job array. A study has its own settings, and workers that are added those of their run.
check_grid() {
  local told line
  [[ -n ${SAC_GRID:-} && -n $tfagents_python && -z $tfagents_add && " ${tfagents_settings[*]-}" != *" --study="* ]] || return 0
  told=$(find_file SAC_GRID) || return 0 # See check_place.
  told=$("$tfagents_python" -S -E "$tfagents_root/tfagents_system/settings/grid.py" "$told" 2>&1 >/dev/null) && return
  while IFS= read -r line; do finding "${line#error: }"; done <<<"$told"
}

check_request() {
  check_options
  require_whole SAC_REVERB_CPUS "CPUs of the replay server"
  require_whole SAC_TRAIN_CPUS "CPUs of the policy updates"
  require_whole SAC_NUM_COLLECT_WORKERS "workers"
  check_beside SAC_EXPERT_WORKERS "expert workers" "experts join with join_script.sh --role expert"
  check_beside SAC_EVAL_WORKERS "evaluating workers" "workers join with join_script.sh --role eval, which add to each evaluation"
  require_whole SAC_COLLECT_WORKER_CPUS "CPUs of each worker"
  require_whole SAC_MEM_GB "memory in GiB" 1
  require_whole SAC_WORKER_MEMORY_MB "memory of a worker in MiB" 1
  require_whole SAC_SNAPSHOT_MB "most MiB of a snapshot" 1
  require_file SAC_PARAMS "Python file with class TrainParams" my_params.py
  require_file SAC_CONFIG "JSON file with horizon" my.json
  check_places
  check_grid
  require_flag SAC_USE_HYPERTHREADS
  require_flag SAC_TRAIN_GPUS
  require_flag SAC_FORK_ROLES
  [[ ${SAC_SAVE_DEADLINE_SECS:-60} =~ ^[0-9]+([.][0-9]*)?$ ]] \
    || finding "SAC_SAVE_DEADLINE_SECS=$SAC_SAVE_DEADLINE_SECS must be a number of seconds above 0, such as 60"
  [[ ${SAC_SEED:-0} =~ ^[0-9]{1,9}$ ]] || is_late "$SAC_SEED" || finding "SAC_SEED=$SAC_SEED must be a whole number from 0 to 999999999"
  # It would be in the snapshot, whether or not the check is made.
  [[ ! ${SAC_MLFLOW_URI:-} =~ ^(https?:)?(//)?[^/]*@|://[^/]*:[^/]*@ ]] \
    || finding "SAC_MLFLOW_URI must not hold a user, password or token: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
  [[ -n ${SAC_EXP_NAME:-} ]] || finding "SAC_EXP_NAME is missing (name of the run): add SAC_EXP_NAME=my_run to $tfagents_vars"
  [[ $tfagents_nodes =~ ^[1-9][0-9]{0,3}$ ]] || finding "--nodes=$tfagents_nodes must be a number of nodes, such as 2"
  [[ $tfagents_nodes == 1 || -n $tfagents_add || ${SAC_DETERMINISTIC:-0} != 1 ]] \
    || finding "--nodes=$tfagents_nodes does not work with SAC_DETERMINISTIC=1, where a run restarts all its workers with itself: leave out one of the two"
  local setting
  for setting in ${tfagents_settings[@]+"${tfagents_settings[@]}"}; do
    case $setting in
      --set | --keep | --take_edits | --reset_training | --reset_training=* | --catch_up | --study=*) ;;
      *) check_setting "${setting#--set=}" ;;
    esac
  done
  if [[ -n $tfagents_add$tfagents_to ]]; then check_added; fi
  [[ -z $tfagents_array || $tfagents_array =~ ^[0-9]+(-[0-9]+(:[1-9][0-9]*)?)?(,[0-9]+(-[0-9]+(:[1-9][0-9]*)?)?)*(%[1-9][0-9]*)?$ ]] \
    || finding "--array=$tfagents_array must be task ids such as 0-9, 0-9:2 or 1,5,7, with %4 behind them for at most 4 at once"
}

# `\$SLURM_TMPDIR`, or '$TMPDIR/ring': a folder of that name, and no reference for the job. As variable_values.py has it.
check_places() {
  local name
  for name in SAC_EXP_DIR SAC_LOGS_DIR SAC_REPLAY_DIR SAC_CREDENTIALS_DIR SAC_PASSWORD_FILE; do
    if [[ ${!name:-} != /* && ${!name:-} =~ \$(\{?[A-Za-z_][A-Za-z0-9_]*\}?|\() ]]; then
      finding "$name=${!name} must be a path, and ${BASH_REMATCH[0]} in it is not replaced: leave out the backslash or the single quotes"
    fi
  done
}

# Workers that the run starts beside SAC_NUM_COLLECT_WORKERS.
check_beside() { # NAME MEANING INSTEAD
  local count=${!1:-0}
  [[ $count =~ ^(0|[1-9][0-9]{0,5})$ ]] || finding "$1=$count must be a whole number of at least 0 ($2)"
  [[ $tfagents_nodes == 1 || -n $tfagents_add || $count == 0 ]] \
    || finding "--nodes=$tfagents_nodes does not work with $1=$count: unset it, and let $3"
}

# Only its form: Python checks whether there is such a setting, in the check of the job.
check_setting() { # NAME=VALUE
  local name=${1%%=*} letter='([^[:digit:][:space:][:punct:]]|_)'
  if [[ $1 != *=* || ! $name =~ ^$letter($letter|[[:digit:]])*([.][^.]+)*$ ]]; then
    finding "--set $1: it must be NAME=VALUE, as in --set train_batch_size=512"
  elif [[ $name == SAC_* ]]; then
    finding "--set $1: what the job asks for follows from the variables: set $name in $tfagents_vars"
  fi
}

# Workers that are added to a run under way.
check_added() {
  [[ $tfagents_add =~ ^[1-9][0-9]{0,3}$ ]] \
    || finding "--add_workers=$tfagents_add must be a number of workers, such as 32, with --to RUN"
  [[ -z $tfagents_array ]] || finding "--array and --add_workers: workers are added to one run at a time"
  ((${#tfagents_settings[@]} == 0)) || finding "--add_workers: workers take the settings and files of their run: remove --set, --keep, --take_edits and --reset_training"
  if [[ -z $tfagents_to || ! -f $tfagents_exp_dir/run.json ]]; then
    finding "--to=$tfagents_to must be the directory of a run, such as logs/my_run"
  elif [[ ! -f $tfagents_exp_dir/gateway.json ]]; then
    finding "the run in $tfagents_exp_dir lets nobody in from other nodes: start it with SAC_GATEWAY_PORT=0 in its vars file"
  fi
}

added_workers_a_node() {
  echo $(((tfagents_add + tfagents_nodes - 1) / tfagents_nodes))
}

own_workers() {
  echo $((SAC_NUM_COLLECT_WORKERS + ${SAC_EXPERT_WORKERS:-0} + ${SAC_EVAL_WORKERS:-0}))
}

# CPUs of each node. Further ones have neither a replay server nor a trainer: those CPUs are spare.
asked_cpus() {
  if [[ -n $tfagents_add ]]; then
    echo $(($(added_workers_a_node) * SAC_COLLECT_WORKER_CPUS + 1)) && return
  fi
  echo $((SAC_REVERB_CPUS + SAC_TRAIN_CPUS + $(own_workers) * SAC_COLLECT_WORKER_CPUS + SPARE_CPUS))
}

# The rings that the job's run has already, or the runs of the array's tasks.
own_rings() {
  local part step folder
  if [[ -z $tfagents_array ]]; then
    if [[ -d $tfagents_exp_dir/replay ]]; then echo "$tfagents_exp_dir/replay"; fi
    return
  fi
  for part in $(tr , ' ' <<<"${tfagents_array%%%*}"); do
    step=1
    if [[ $part == *:* ]]; then step=${part#*:} part=${part%:*}; fi
    seq "$((10#${part%-*}))" "$step" "$((10#${part#*-}))"
  done | while read -r part; do
    folder=${tfagents_exp_dir}_task_$part/replay
    if [[ -d $folder ]]; then echo "$folder"; fi
  done
}

# MiB: what the programs take, and the ring, which counts as far as it is in the page cache. Only its params know the
# size of a new run's ring; a continued run's can be measured, and of an array's the largest one.
asked_memory_mb() {
  if [[ -n ${SAC_MEM_GB:-} ]]; then echo $((SAC_MEM_GB * 1024)) && return; fi
  local worker_mb=${SAC_WORKER_MEMORY_MB:-$WORKER_MB} base_mb=$BASE_MB ring_mb=$NEW_RING_MB size_mb folder
  if [[ ${SAC_FORK_ROLES:-1} == 0 ]]; then worker_mb=$((worker_mb + UNFORKED_MB)) base_mb=$((base_mb + 2 * UNFORKED_MB)); fi
  while read -r folder; do
    size_mb=$(du -sm "$folder" | cut -f1)
    if ((size_mb > ring_mb)); then ring_mb=$size_mb; fi
  done < <(own_rings)
  if [[ -n $tfagents_add ]]; then
    echo $((base_mb + $(added_workers_a_node) * worker_mb)) && return
  fi
  echo $((base_mb + $(own_workers) * worker_mb + ring_mb))
}

signal_secs() {
  local deadline=${SAC_SAVE_DEADLINE_SECS:-60}
  echo $((${deadline%%.*} + SIGNAL_SLACK_SECS))
}

# `0-249` with at most 101 ids an array -> lines `0 0-100`, `101 0-100`, `202 0-47`: an offset, and ids to be added to it.
split_array() { # IDS MOST
  local part first last step offset low high
  local -A ids=()
  for part in ${1//,/ }; do
    step=1
    if [[ $part == *:* ]]; then step=${part#*:} part=${part%:*}; fi
    first=$((10#${part%-*})) last=$((10#${part#*-}))
    for ((offset = first / $2 * $2; offset <= last; offset += $2)); do
      low=$((offset > first ? offset + (step - (offset - first) % step) % step : first))
      high=$((last < offset + $2 - 1 ? last : offset + $2 - 1))
      if ((low > high)); then continue; fi
      ids[$offset]+=,$((low - offset))
      if ((high > low)); then ids[$offset]+=-$((high - offset)); fi
      if ((high > low && step > 1)); then ids[$offset]+=:$step; fi
    done
  done
  for offset in "${!ids[@]}"; do echo "$offset ${ids[$offset]#,}"; done | sort -n
}

most_array_ids() {
  local size
  size=$(timeout 10 scontrol show config 2>/dev/null | sed -n 's/^MaxArraySize *= *//p' || true)
  echo "${size:-1001}" # SLURM's own default.
}
