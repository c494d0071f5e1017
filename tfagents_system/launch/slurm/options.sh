# shellcheck shell=bash
# The options of submit.sh: its own, and those that it passes on to sbatch. Sourced by submit.sh.

tfagents_dry_run=0 tfagents_check=1 tfagents_array='' tfagents_nodes=1
tfagents_settings=() # --set, --keep and so on, for run_script.sh.
tfagents_from='' tfagents_take=''
tfagents_options=() # For sbatch, as they were given: it knows its own, and what a cluster has added to them.
tfagents_lasting=() # Those of them that also hold when the job is submitted again.

read_options() {
  while (($#)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --dry_run) tfagents_dry_run=1 ;;
      --no_check) tfagents_check=0 ;;
      --set) value_of "$@" && tfagents_settings+=(--set "$2") && shift ;;
      --set=* | --keep | --study=*) tfagents_settings+=("$1") ;;
      --from) value_of "$@" && tfagents_from=$2 && shift ;;
      --take) value_of "$@" && tfagents_take=$2 && shift ;;
      --from=*) tfagents_from=${1#*=} ;;
      --take=*) tfagents_take=${1#*=} ;;
      --fresh)
        fail "--fresh is for starts by hand, and a job goes on with the run that is there: choose another SAC_EXP_NAME, or move the run's" \
          "directory away yourself"
        ;;
      -a | --array) value_of "$@" && tfagents_array=$2 && shift ;;
      --array=*) tfagents_array=${1#*=} ;;
      -a?*) tfagents_array=${1#-a} ;;
      -N | --nodes) value_of "$@" && tfagents_nodes=$2 && shift ;;
      --nodes=*) tfagents_nodes=${1#*=} ;;
      -N?*) tfagents_nodes=${1#-N} ;;
      # Only for this submission.
      -b | --begin | -d | --dependency) value_of "$@" && tfagents_options+=("$1" "$2") && shift ;;
      -H | --hold | -W | --wait | --parsable | --test-only | -Q | --quiet | -v | --verbose | --begin=* | --dependency=*)
        tfagents_options+=("$1")
        ;;
      --)
        tfagents_options+=("${@:2}") tfagents_lasting+=("${@:2}")
        return
        ;;
      *) tfagents_options+=("$1") tfagents_lasting+=("$1") ;;
    esac
    shift
  done
}

value_of() { # OPTION VALUE...
  (($# > 1)) || fail "$1 needs a value (./submit.sh --help)"
}

has_option() { # PATTERN
  local option
  for option in ${tfagents_options[@]+"${tfagents_options[@]}"}; do
    # shellcheck disable=SC2053
    if [[ $option == $1 ]]; then return 0; fi
  done
  return 1
}

asks_for_gpus() { # by an option of the user's
  [[ " ${tfagents_options[*]-}" =~ \ (-G|--gpus|--(gres|tres)[^\ ]*[=\ ][^\ ]*gpu) ]]
}

asks_for_memory() {
  has_option --mem || has_option '--mem=*' || has_option '--mem-per-*'
}

# SLURM has no option for GPUs on the first node only: the job then has two components. An array can't have any.
has_components() {
  [[ ${SAC_TRAIN_GPUS:-0} == 1 && -z $tfagents_array ]] && ((tfagents_nodes > 1)) && ! asks_for_gpus
}

is_in_job() { [[ -n ${SLURM_JOB_ID:-}${SLURM_ARRAY_TASK_ID:-} ]]; }

# What SLURM has set for another job, before the vars file is read: what that sets, the new job has.
forget_devices() {
  if is_in_job; then unset CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL SLURMD_NODENAME; fi
}

# sbatch takes options from its environment, and passes it on: in another job, such as an interactive one, what SLURM has
# set there is not the new job's. What SLURM's commands need stays.
call_sbatch() ( # WORD...
  unset TFAGENTS_NO_TASK TFAGENTS_SUBMITTED_AGAIN
  if is_in_job; then
    for name in "${!SLURM_@}"; do
      case $name in
        SLURM_CONF | SLURM_CONF_SERVER | SLURM_CLUSTERS | SLURM_JWT | SLURM_TIME_FORMAT | SLURM_EXIT_ERROR | SLURM_DEBUG_FLAGS) ;;
        *) export -n "${name?}" ;;
      esac
    done
  fi
  exec sbatch "$@"
)

submit_job() { # SBATCH JOB_SCRIPT
  local array=()
  if [[ -n $tfagents_array ]]; then array=(--array="$tfagents_array"); fi
  if [[ -n $tfagents_array && $tfagents_array != *%* ]]; then array=(--array="$tfagents_array%$TASKS_AT_ONCE"); fi
  "$1" ${tfagents_options[@]+"${tfagents_options[@]}"} ${array[@]+"${array[@]}"} "$2"
}
