#!/usr/bin/env bash
# One attempt at a run, in its job: a run that was stopped and saved is requeued, until it is finished or gets nowhere.
#
#   job.sh SNAPSHOT [OFFSET [--set NAME=VALUE]...]     OFFSET is added to SLURM_ARRAY_TASK_ID: an array may be larger than MaxArraySize
set -uo pipefail

readonly LEAVE_SECS=30
snapshot=$1 offset=${2:-0} num_nodes=${SLURM_JOB_NUM_NODES:-1}
folder=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=tfagents_system/launch/slurm/progress.sh
source "$folder/progress.sh"
say() { echo "$(date '+%F %T') job $SLURM_JOB_ID: $*"; }
end() { # CODE WORDS
  say "${*:2}"
  exit "$1"
}

slurm_task=${SLURM_ARRAY_TASK_ID:-}
if [[ -n $slurm_task ]]; then export SLURM_ARRAY_TASK_ID=$((slurm_task + offset)); fi
variable() { # NAME: what the run has
  # shellcheck source=/dev/null
  (source "$snapshot/variables.sh" && echo "${!1}")
}
exp_dir=$(variable SAC_EXP_DIR) || end 2 "$snapshot/variables.sh can't be read"
exp_dir+=${slurm_task:+_task_$SLURM_ARRAY_TASK_ID}

# Processes that the kernel has killed for lack of memory: in this job where it has a cgroup of its own, else here.
oom_kills() {
  local group
  group=$(sed -n 's/^0:://p' /proc/self/cgroup | grep -o '^.*/job_[0-9]*')
  cat "/sys/fs/cgroup${group:-/none}/memory.events" /proc/vmstat 2>/dev/null | awk '$1 == "oom_kill" {print $2; exit}'
}

job_says() { # FIELD: of `scontrol show job`
  scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null | grep -oE "(^| )$1=[^ ]*" | head -n 1 | cut -d= -f2
}

# Whether the run was stopped but ran out of time to save: what it had saved before is there.
was_stopped() {
  [[ $exp_dir/status.json -nt $exp_dir/requeues ]] && grep -q '"message": *"stopped by SIG' "$exp_dir/status.json"
}

# The warning before the time limit comes with so little time left that no other reason is likely.
is_at_time_limit() {
  local left
  left=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%L 2>/dev/null) || return 1
  [[ $left =~ ^[0-4]:[0-9]{2}$ ]]
}

requeue() {
  local state
  state=$(job_says JobState)
  [[ -n $state ]] || state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T 2>/dev/null)
  if [[ $(job_says Restarts) -gt ${SLURM_RESTART_COUNT:-0} ]]; then
    end 75 "$outcome, and requeued by SLURM"
  elif [[ $(job_says Requeue) == 0 ]]; then
    end 75 "$outcome, and not requeued (--no-requeue): submit it again to go on"
  elif [[ $state != RUNNING && $(job_says Reason) != TimeLimit && ! (-z $state && $told != TERM) ]]; then
    end 75 "$outcome, and not requeued: it was cancelled (${state:-state unknown}): submit it again to go on"
  elif scontrol requeue "$SLURM_JOB_ID"; then
    end 75 "$outcome, and requeued"
  fi
  # A site that forbids it: a new job goes on, after this one.
  sbatch --dependency="afterany:$SLURM_JOB_ID" ${slurm_task:+--array="$slurm_task"} "$snapshot/job.sbatch" "$offset" \
    || end 1 "$outcome, but it can't be requeued, and no new job can be submitted: submit it again to go on"
  end 75 "$outcome; the job submitted goes on"
}

begin_attempt || end 1 "not started: it has died $idle times in a row, and no update after step $last_step was saved. See" \
  "$exp_dir/logs; a shorter SAC_CHECKPOINT_MINUTES saves more often"
say "attempt $((${SLURM_RESTART_COUNT:-0} + 1)) on ${SLURMD_NODENAME:-$(hostname)}, from train step $last_step: $exp_dir"

run='' others='' told='' oom_before=$(oom_kills)
forward() { # SIGNAL: `srun` passes USR1 on, at a SIGTERM it would kill
  told=$1
  if [[ -n $run ]]; then kill -USR1 "$run" 2>/dev/null; fi
}
# The workers on further nodes see that the run is over; where it has never begun they would wait for it.
leave_nodes() {
  local k
  for ((k = 0; k < LEAVE_SECS && (code == 0 || code == 75); k++)); do
    kill -0 "$others" 2>/dev/null || return 0
    sleep 1
  done
  kill "$others" 2>/dev/null && wait "$others"
}
for name in TERM USR1 USR2; do trap 'forward '$name "$name"; done
# The variable alone would not do: `srun` does not take it over from `sbatch` in every version.
on_nodes() { # COUNT FIRST COMMAND...
  exec srun --nodes="$1" --ntasks="$1" --relative="$2" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --export=ALL \
    --no-kill --kill-on-bad-exit=0 "${@:3}"
}
on_nodes 1 0 "$snapshot/package/run_script.sh" "$snapshot/variables.sh" "${@:3}" &
run=$!
if ((num_nodes > 1)); then
  on_nodes $((num_nodes - 1)) 1 "$snapshot/package/join_script.sh" "$snapshot/variables.sh" --to "$exp_dir" \
    --workers "$(variable SAC_LOCAL_WORKERS)" &
  others=$!
fi
if [[ -n $told ]]; then forward "$told"; fi
while
  wait "$run"
  code=$?
  ((code > 128)) && kill -0 "$run" 2>/dev/null
do :; done
if [[ -n $others ]]; then leave_nodes; fi

case $code in
  0) end 0 "finished" ;;
  2) end 2 "not requeued: something must be changed first, see above" ;;
esac
if ((code != 75)) && [[ $(oom_kills) -gt $oom_before ]]; then
  end 1 "not requeued: the kernel has killed a process for lack of memory: ask for more (SAC_MEM_GB, or --mem)"
fi
((code == 75 || code > 128)) || { ((code == 1)) && was_stopped; } || end "$code" "failed with exit code $code, not requeued: see $exp_dir/logs"
outcome=saved start=excused
if ((code != 75)); then outcome="ended with exit code $code"; fi
# With as little time, or for a reason of its own such as a launch that fails, the next start would end the same way.
case $code in
  1 | 75 | 130 | 138 | 140 | 143) if is_at_time_limit; then start=blamed; fi ;;
  *) start=blamed ;;
esac
end_attempt $start || end 1 "not requeued: $idle attempts in a row have saved no update after step $last_step:" \
  "give it more time (--time), or see above and $exp_dir/logs for what is in its way"
requeue
