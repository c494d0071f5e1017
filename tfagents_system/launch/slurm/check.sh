# shellcheck shell=bash
# The checks of a start, made when a job is submitted and not after its hours in the queue. Sourced by
# submit.sh.

readonly CHECK_SECS=${TFAGENTS_CHECK_SECS:-20} # Tests have more, on machines that are busy.

check_place() {
  local ancestor=$tfagents_submit_dir file
  if is_late "$tfagents_exp_dir"; then
    finding "the run directory $tfagents_exp_dir must not depend on the job: it holds what is requeued"
  elif [[ $tfagents_exp_dir == *[[:cntrl:]\"]* ]]; then
    finding "the run directory $tfagents_exp_dir must not have quotation marks or line breaks in its name"
  elif [[ -n $tfagents_array && $tfagents_exp_dir =~ _task_([0-9]+)$ ]]; then
    finding "the run directory $tfagents_exp_dir must not end in ${BASH_REMATCH[0]} with --array, where that is the one of" \
      "task ${BASH_REMATCH[1]}: choose another SAC_EXP_NAME"
  fi
  while [[ ! -e $ancestor ]]; do ancestor=$(dirname "$ancestor"); done
  tfagents_existing=$ancestor # Everything below it is made for this submission.
  [[ -d $ancestor && -w $ancestor && -x $ancestor ]] \
    || finding "$tfagents_submit_dir can't be made, $ancestor can't be written: set SAC_LOGS_DIR to a folder that is yours"
  # The packages may as well come from an image; the job reports it if they are missing.
  if [[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-}${SAC_EXEC_PREFIX:-}${SAC_JOB_PRELUDE:-}${SAC_PYTHON:-} ]]; then
    [[ -x $tfagents_root/.venv/bin/python ]] \
      || finding "the packages are not installed, and jobs install nothing: run ./setup.sh here, once"
  fi
  for file in SAC_ENV_PYTHON SAC_GRID; do
    if [[ -n ${!file:-} ]] && ! find_file "$file" >/dev/null; then finding "$file=${!file} must be an existing file"; fi
  done
  if ! ((tfagents_dry_run)) && ! command -v sbatch >/dev/null; then
    finding "sbatch is not on PATH: this is no SLURM cluster, or its module is not loaded; ./run_script.sh trains right here"
  fi
}

# Checks what was frozen, as the job will run it. What follows from the job's machine is left to the job. A dry run has
# frozen nothing, and checks what would be frozen.
check_job() { # PACKAGE VARS REPORT [SNAPSHOT]
  local code=0 why where=${4:+$4/check.txt}
  if why=$(why_unchecked); then
    echo "note: params and memory are checked by the job, not here: $why" >&2 && return
  fi
  echo "checking params, environment and memory, for at most $CHECK_SECS s (--no_check leaves it out)" >&2
  SLURM_JOB_ID=0 SLURM_RESTART_COUNT=0 SLURM_ARRAY_TASK_ID=${tfagents_array%%[!0-9]*} \
    TFAGENTS_JOB_MB=$(job_memory_mb) timeout --foreground --kill-after=2 "$CHECK_SECS" \
    "$1/tfagents_system/launch/run_script.sh" --check \
    ${tfagents_settings[@]+"${tfagents_settings[@]}"} "$2" >"$3" 2>&1 </dev/null || code=$?
  case $code in
    0)
      grep '^note ' "$3" >&2 || true
      echo "checked: nothing is in its way" >&2
      ;;
    2)
      if why=$(python_fault "$1"); then
        echo "note: params and memory are checked by the job, not here: $why" >&2 && return
      fi
      # `|`: the differences of edited files.
      grep -E '^(ERROR|error:|note|  \|) ' "$3" >&2 || cat "$3" >&2
      if (($# > 3)); then drop_snapshot "$4"; fi
      fail "nothing was submitted: correct what is said above (--no_check submits without this check)"
      ;;
    124 | 137) echo "note: params and memory could not be checked within $CHECK_SECS s: the job does it" >&2 ;;
    *)
      if (($# < 4)); then tail -n 5 "$3" >&2; fi
      echo "note: params and memory could not be checked here (exit code $code, see ${where:-above}): the job does it" >&2
      ;;
  esac
}

why_unchecked() { # -> the reason; fails if the check can be made
  local name
  ((tfagents_check)) || { echo "--no_check" && return; }
  for name in SAC_JOB_PRELUDE SAC_EXEC_PREFIX; do
    if [[ -n ${!name:-} ]]; then echo "the environment is that of $name" && return; fi
  done
  return 1
}

# Why the run's Python is not available on this machine, though it may be where the job runs; fails if it is.
python_fault() { # PACKAGE
  local told
  # As in a job: nothing is installed.
  # shellcheck disable=SC2016
  if told=$(SLURM_JOB_ID=0 timeout "$CHECK_SECS" bash -c 'source "$0" && toolkit_python "$1"' \
    "$1/tfagents_system/launch/toolkit_python.sh" "$1" 2>&1 >/dev/null); then return 1; fi
  echo "${told##*error: }"
}

# MiB of the job on its first node; nothing if a user's option leaves that to the cluster.
job_memory_mb() {
  local text
  if ! asks_for_memory; then asked_memory_mb && return; fi
  [[ " ${tfagents_options[*]}" =~ \ --mem[=\ ]([0-9]+)([KMGTkmgt]?) && ${BASH_REMATCH[1]} != 0 ]] || return 0
  text=${BASH_REMATCH[1]}
  case ${BASH_REMATCH[2]} in
    [Kk]) echo $((text / 1024)) ;;
    [Gg]) echo $((text * 1024)) ;;
    [Tt]) echo $((text * 1024 * 1024)) ;;
    *) echo "$text" ;;
  esac
}

# Submits what was frozen, and removes it where sbatch refuses it.
submit_snapshot() { # SNAPSHOT
  local code=0 told=$1/sbatch.txt
  forget_late
  if has_option --wait || has_option -W; then # The exit code is that of the job.
    submit_job call_sbatch "$1/job.sbatch"
    return
  fi
  submit_job call_sbatch "$1/job.sbatch" 2>"$told" || code=$?
  cat "$told" >&2
  if ((code)) && ! grep -qi 'timed out' "$told"; then # Else a job may be in the queue.
    drop_snapshot "$1"
    echo "error: sbatch refused the job with exit code $code, see above: nothing was submitted" >&2
  elif [[ ! -s $told ]]; then
    rm -- "$told"
  fi
  return "$code"
}

# Removes what was just written in vain; folders that existed before stay.
drop_snapshot() { # SNAPSHOT
  local folder
  rm -rf -- "$1"
  folder=$(dirname "$1")
  while [[ ! $folder -ef $tfagents_existing ]] && rmdir -- "$folder" 2>/dev/null; do folder=$(dirname "$folder"); done
}
