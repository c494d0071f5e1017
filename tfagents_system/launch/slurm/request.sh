# shellcheck shell=bash
# What a run asks SLURM for. Sourced by submit.sh once the vars file is read.

readonly SPARE_CPUS=2 # For supervisor, fork server and the system.
readonly BASE_MB=1500 WORKER_MB=400 NEW_RING_MB=1000
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
  fi
}

# The grid as one of a job array. A study has its own settings.
check_grid() {
  local told line
  [[ -n ${SAC_GRID:-} && -n $tfagents_python && " ${tfagents_settings[*]-}" != *" --study="* ]] || return 0
  told=$(find_file SAC_GRID) || return 0 # See check_place.
  told=$("$tfagents_python" -S -E "$tfagents_root/tfagents_system/settings/grid.py" "$told" 2>&1 >/dev/null) && return
  while IFS= read -r line; do finding "${line#error: }"; done <<<"$told"
}

# Where submit.sh is called nobody knows a node's CPUs: the request follows from numbers.
fill_in_counts() {
  [[ ${SAC_REVERB_CPUS:-auto} != auto ]] || SAC_REVERB_CPUS=1
  [[ ${SAC_TRAIN_CPUS:-auto} != auto ]] || SAC_TRAIN_CPUS=2
  [[ ${SAC_COLLECT_WORKER_CPUS:-auto} != auto ]] || SAC_COLLECT_WORKER_CPUS=1
}

check_request() {
  fill_in_counts
  require_whole SAC_REVERB_CPUS "CPUs of the replay server"
  require_whole SAC_TRAIN_CPUS "CPUs of the policy updates"
  [[ ! ${SAC_NUM_COLLECT_WORKERS:-auto} == auto ]] \
    || finding "SAC_NUM_COLLECT_WORKERS=auto must be a number in a job, whose CPUs follow from it: add SAC_NUM_COLLECT_WORKERS=8 to $tfagents_vars"
  require_whole SAC_NUM_COLLECT_WORKERS "workers" 1
  check_beside SAC_EXPERT_WORKERS "expert workers" "experts join with sac join --role expert"
  check_beside SAC_EVAL_WORKERS "evaluating workers" "workers join with sac join --role eval, which add to each evaluation"
  require_whole SAC_COLLECT_WORKER_CPUS "CPUs of each worker"
  require_whole SAC_WORKER_MEMORY_MB "memory of a worker in MiB" 1
  require_file SAC_PARAMS "Python file with class TrainParams" my_params.py
  require_file SAC_CONFIG "JSON file with horizon" my.json
  check_grid
  require_flag SAC_TRAIN_GPUS
  [[ ${SAC_SAVE_DEADLINE_SECS:-60} =~ ^[0-9]+([.][0-9]*)?$ ]] \
    || finding "SAC_SAVE_DEADLINE_SECS=$SAC_SAVE_DEADLINE_SECS must be a number of seconds above 0, such as 60"
  [[ ${SAC_SEED:-0} =~ ^[0-9]{1,9}$ ]] || is_late "$SAC_SEED" || finding "SAC_SEED=$SAC_SEED must be a whole number from 0 to 999999999"
  # It would be in the snapshot, whether or not the check is made.
  [[ ! ${SAC_MLFLOW_URI:-} =~ ^(https?:)?(//)?[^/]*@|://[^/]*:[^/]*@ ]] \
    || finding "SAC_MLFLOW_URI must not hold a user, password or token: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
  [[ -n ${SAC_EXP_NAME:-} ]] || finding "SAC_EXP_NAME is missing (name of the run): add SAC_EXP_NAME=my_run to $tfagents_vars"
  [[ $tfagents_nodes =~ ^[1-9][0-9]{0,3}$ ]] || finding "--nodes=$tfagents_nodes must be a number of nodes, such as 2"
  [[ $tfagents_nodes == 1 || ${SAC_DETERMINISTIC:-0} != 1 ]] \
    || finding "--nodes=$tfagents_nodes does not work with SAC_DETERMINISTIC=1, where a run restarts all its workers with itself: leave out one of the two"
  local setting
  for setting in ${tfagents_settings[@]+"${tfagents_settings[@]}"}; do
    case $setting in
      --set | --keep | --study=*) ;;
      *) check_setting "${setting#--set=}" ;;
    esac
  done
  if [[ $tfagents_array =~ ^[0-9]+(-[0-9]+(:[1-9][0-9]*)?)?(,[0-9]+(-[0-9]+(:[1-9][0-9]*)?)?)*(%[1-9][0-9]*)?$ ]]; then
    check_array_size
  elif [[ -n $tfagents_array ]]; then
    finding "--array=$tfagents_array must be task ids such as 0-9, 0-9:2 or 1,5,7, with %4 behind them for at most 4 at once"
  fi
}

# Workers that the run starts beside SAC_NUM_COLLECT_WORKERS.
check_beside() { # NAME MEANING INSTEAD
  local count=${!1:-0}
  [[ $count =~ ^(0|[1-9][0-9]{0,5})$ ]] || finding "$1=$count must be a whole number of at least 0 ($2)"
  [[ $tfagents_nodes == 1 || $count == 0 ]] \
    || finding "--nodes=$tfagents_nodes does not work with $1=$count: unset it, and let $3"
}

# Others are judged by the check of the job.
check_setting() { # NAME=VALUE
  if [[ $1 == SAC_* ]]; then
    finding "--set $1: what the job asks for follows from the variables: set ${1%%=*} in $tfagents_vars"
  fi
}

own_workers() {
  echo $((SAC_NUM_COLLECT_WORKERS + ${SAC_EXPERT_WORKERS:-0} + ${SAC_EVAL_WORKERS:-0}))
}

# CPUs of each node. Further ones have neither a replay server nor a trainer: those CPUs are spare.
asked_cpus() {
  echo $((SAC_REVERB_CPUS + SAC_TRAIN_CPUS + $(own_workers) * SAC_COLLECT_WORKER_CPUS + SPARE_CPUS))
}

# MiB: what the programs take, and the ring, which counts as far as it is in the page cache. Only its params know the
# size of a new run's ring; a continued run's can be measured.
asked_memory_mb() {
  local worker_mb=${SAC_WORKER_MEMORY_MB:-$WORKER_MB} ring_mb
  ring_mb=$(du -sm "$tfagents_exp_dir/replay" 2>/dev/null | cut -f1)
  ((${ring_mb:=0} > NEW_RING_MB)) || ring_mb=$NEW_RING_MB
  echo $((BASE_MB + $(own_workers) * worker_mb + ring_mb))
}

signal_secs() {
  local deadline=${SAC_SAVE_DEADLINE_SECS:-60}
  echo $((${deadline%%.*} + SIGNAL_SLACK_SECS))
}

# Refuses task numbers that SLURM does not take.
check_array_size() {
  local size part last
  size=$(timeout 10 scontrol show config 2>/dev/null | sed -n 's/^MaxArraySize *= *//p' || true)
  for part in $(tr , ' ' <<<"${tfagents_array%%%*}"); do
    part=${part%:*} last=$((10#${part#*-}))
    if ((last >= ${size:-1001})); then # SLURM's own default.
      finding "--array=$tfagents_array has task $last, and this cluster takes numbers below ${size:-1001} (MaxArraySize):" \
        "submit fewer tasks, with other names for the others"
      return
    fi
  done
}
