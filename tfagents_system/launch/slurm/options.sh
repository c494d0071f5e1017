# shellcheck shell=bash
# The options of submit.sh: its own, and those that it passes on to sbatch. Sourced by submit.sh.

tfagents_dry_run=0 tfagents_check=1 tfagents_array='' tfagents_nodes=1 tfagents_add='' tfagents_to=''
tfagents_settings=() # --set, --keep, --reset_training and so on, for run_script.sh.
tfagents_options=() # For sbatch, as they were given.
tfagents_lasting=() # Those of them that also hold when the job is submitted again.
tfagents_unknown=() # Long options that sbatch does not have.
readonly OWN_OPTIONS="dry_run no_check add_workers to set array nodes keep take_edits reset_training catch_up study fresh help"
# sbatch's, up to SLURM 25.05. What a site has added (SPANK) is given after `--`.
readonly SBATCH_OPTIONS="account acctg-freq batch bb bbf begin chdir cluster cluster-constraint clusters comment
  consolidate-segments constraint container container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu
  cpus-per-task deadline delay-boot dependency distribution error exclude exclusive export export-file extra extra-node-info
  get-user-env gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint hold ignore-pbs
  input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus
  network nice no-kill no-requeue nodefile nodelist ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
  oom-kill-step open-mode output overcommit oversubscribe parsable partition power prefer priority profile propagate qos
  quiet reboot requeue reservation resv-ports segment share signal sockets-per-node spread-job spread-segments stepmgr
  switches test-only thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid usage use-min-nodes verbose
  version wait wait-all-nodes wckey wrap"

read_options() {
  while (($#)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --dry_run) tfagents_dry_run=1 ;;
      --no_check) tfagents_check=0 ;;
      --add_workers) value_of "$@" && tfagents_add=$2 && shift ;;
      --add_workers=*) tfagents_add=${1#*=} ;;
      --to) value_of "$@" && tfagents_to=$2 && shift ;;
      --to=*) tfagents_to=${1#*=} ;;
      --set) value_of "$@" && tfagents_settings+=(--set "$2") && shift ;;
      --set=* | --keep | --take_edits | --reset_training | --reset_training=* | --catch_up | --study=*) tfagents_settings+=("$1") ;;
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
      --*)
        if ! is_of_sbatch "${1#--}"; then tfagents_unknown+=("$1"); fi
        tfagents_options+=("$1") tfagents_lasting+=("$1")
        ;;
      *) tfagents_options+=("$1") tfagents_lasting+=("$1") ;;
    esac
    shift
  done
}

# Shortened ones, too (`--part=long`), except those that may be meant for submit.sh, which would not see them.
is_of_sbatch() { # OPTION[=VALUE]
  local name known
  name=${1%%=*}
  for known in $OWN_OPTIONS; do
    if [[ $known == "$name"* && " ${SBATCH_OPTIONS//$'\n'/ } " != *" $name "* ]]; then return 1; fi
  done
  for known in $SBATCH_OPTIONS; do
    if [[ $known == "$name"* ]]; then return 0; fi
  done
  return 1
}

check_options() {
  local option near
  for option in ${tfagents_unknown[@]+"${tfagents_unknown[@]}"}; do
    near=$(near_option "${option%%=*}")
    finding "$option: neither submit.sh nor sbatch has such an option${near:+, is --$near meant?} One that this cluster has" \
      "added to sbatch is given behind --, as in: -- $option"
  done
}

near_option() { # --NAME -> the known one that looks most like it, if any
  # shellcheck disable=SC2086
  if [[ -n $tfagents_python ]]; then
    "$tfagents_python" -S -E -c 'import difflib, sys
print("".join(difflib.get_close_matches(sys.argv[1].replace("_", "-"), sys.argv[2:], 1, 0.6)))' \
      "${1#--}" $OWN_OPTIONS $SBATCH_OPTIONS
  fi
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
  [[ ${SAC_TRAIN_GPUS:-0} == 1 && -z $tfagents_add$tfagents_array ]] && ((tfagents_nodes > 1)) && ! asks_for_gpus
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

submit_job() { # SBATCH JOB_SCRIPT -> tfagents_submitted: part of an array is in the queue
  local offset ids at_once=$TASKS_AT_ONCE
  if [[ -z $tfagents_array ]]; then
    "$1" ${tfagents_options[@]+"${tfagents_options[@]}"} "$2"
    return
  fi
  if [[ $tfagents_array == *%* ]]; then at_once=${tfagents_array#*%}; fi
  while read -r offset ids; do
    "$1" ${tfagents_options[@]+"${tfagents_options[@]}"} --array="$ids%$at_once" "$2" "$offset" </dev/null || return
    tfagents_submitted=1
  done < <(split_array "${tfagents_array%%%*}" "$(most_array_ids)")
}
