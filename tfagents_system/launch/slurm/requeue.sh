# shellcheck shell=bash
# What SLURM says about this job, and how the job is requeued. Sourced by job.sh.
#
# job.sh sets snapshot, task (empty outside of arrays), told (the last signal) and outcome (words).

readonly EARLY_SECS=60 # SLURM's warning may come this much earlier than requested.

# The job as SLURM's commands name it. SLURM_JOB_ID won't do in an array: the last of its tasks has the id of the whole
# array, and requeueing that id restarts all tasks.
job=$SLURM_JOB_ID
if [[ -n $task ]]; then job=${SLURM_ARRAY_JOB_ID}_$task; fi

job_says() { # FIELD: of `scontrol show job`; a heterogeneous job has a line for each component
  scontrol --oneliner --details show job "$job" 2>/dev/null | grep -oE "(^| )$1=[^ ]*" | head -n 1 | cut -d= -f2
}

queue_says() { # FORMAT: of squeue
  squeue --noheader --jobs="$job" --format="$1" 2>/dev/null | head -n 1
}

job_state() { # -> such as RUNNING or COMPLETING; nothing if SLURM does not answer
  local state
  state=$(job_says JobState)
  echo "${state:-$(queue_says %T)}"
}

job_reason() {
  local reason
  reason=$(job_says Reason)
  echo "${reason:-$(queue_says %r)}"
}

is_requeued_by_slurm() { [[ $(job_says Restarts) -gt ${SLURM_RESTART_COUNT:-0} ]]; }

forbids_requeue() { [[ $(job_says Requeue) == 0 ]]; }

# SLURM ends a job at its time limit as it ends a cancelled one: only the reason differs. If SLURM does not answer, SIGTERM
# is taken for a cancellation.
was_cancelled() {
  case $(job_state) in
    RUNNING) return 1 ;;
    '') [[ $told == TERM ]] ;;
    *) [[ $(job_reason) != TimeLimit ]] ;;
  esac
}

seconds_left() { # before the time limit; fails if there is none, or SLURM does not answer
  local days hours
  [[ $(queue_says %L) =~ ^(([0-9]+)-)?(([0-9]+):)?([0-9]+):([0-9]+)$ ]] || return 1
  days=${BASH_REMATCH[2]:-0} hours=${BASH_REMATCH[4]:-0}
  echo $(((10#$days * 24 + 10#$hours) * 3600 + 10#${BASH_REMATCH[5]} * 60 + 10#${BASH_REMATCH[6]}))
}

# As the job script asks for it (--signal); a user's own option comes last and wins.
warning_secs() {
  local secs
  secs=$(sed -nE 's/^#SBATCH.*--signal[= ]?[^ ]*@([0-9]+).*/\1/p' "$snapshot/job.sbatch" 2>/dev/null | tail -n 1)
  echo "${secs:-60}"
}

# An attempt that ends after the warning before the time limit counts as ended by this warning.
is_at_time_limit() {
  local left
  left=$(seconds_left) && ((left <= $(warning_secs) + EARLY_SECS))
}

# Says for which job another one was submitted, for the start of that: what is asked for once is done once by both.
again_file() { echo "$snapshot/submitted_again${task:+_$task}"; }

# Where a site forbids requeueing: a new job continues after this one.
submit_again() {
  if [[ ! -e $(again_file) ]]; then echo "$SLURM_JOB_ID" >"$(again_file)"; fi
  # sbatch hands its environment on, and a new job has not been restarted.
  env -u SLURM_RESTART_COUNT sbatch --dependency="afterany:$job" ${task:+--array="$task"} \
    "$snapshot/job.sbatch"
}

# SLURM begins to end the job's processes before scontrol has its answer: a scontrol that died of that would seem refused,
# and a second job for the same run would be submitted.
ask_for_requeue() { (
  trap '' TERM USR1 USR2
  exec scontrol requeue "$job"
); }

requeue() { # does not return
  if is_requeued_by_slurm; then
    end 75 "$outcome, and requeued by SLURM"
  elif forbids_requeue; then
    end 75 "$outcome, and not requeued (--no-requeue): submit it again to go on"
  elif was_cancelled; then
    end 75 "$outcome, and not requeued: it was cancelled: submit it again to go on"
  elif ask_for_requeue; then
    end 75 "$outcome, and requeued"
  elif submit_again; then
    end 75 "$outcome; the job submitted goes on"
  fi
  end 1 "$outcome, but it can't be requeued, and no new job can be submitted: submit it again to go on"
}
