#!/usr/bin/env bash
# One attempt at a run, in its job: a run that was stopped and saved is requeued, until it is finished or gets nowhere.
#
#   job.sh SNAPSHOT [--set NAME=VALUE]...
set -uo pipefail

readonly LEAVE_SECS=30
snapshot=$1
folder=$(dirname "${BASH_SOURCE[0]}")
task=${SLURM_ARRAY_TASK_ID:-}
# shellcheck source=tfagents_system/launch/slurm/progress.sh
source "$folder/progress.sh"
# shellcheck source=tfagents_system/launch/slurm/requeue.sh
source "$folder/requeue.sh"
# shellcheck source=tfagents_system/launch/slurm/outcome.sh
source "$folder/outcome.sh"
# shellcheck source=tfagents_system/launch/slurm/nodes.sh
source "$folder/nodes.sh"
say() { echo "$(date '+%F %T') job $job: $*"; }
end() { # CODE WORDS
  say "${*:2}"
  exit "$1"
}

variable() { # NAME: what the run has
  # shellcheck source=/dev/null
  (source "$snapshot/variables.sh" && echo "${!1}")
}
exp_dir=$(variable SAC_EXP_DIR) || end 2 "$snapshot/variables.sh can't be read"
exp_dir+=${task:+_task_$task}
for word; do if [[ $word == --study=* ]]; then exp_dir=${word#*=}/worker_$task; fi; done # See tasks/study.py.

begin_attempt || end 1 "not started: it has died $idle times in a row, and no update after step $last_step was saved. See" \
  "$exp_dir/logs; a shorter SAC_CHECKPOINT_MINUTES saves more often"
say "attempt $((${SLURM_RESTART_COUNT:-0} + 1)) on ${SLURMD_NODENAME:-$(hostname)}, from train step $last_step: $exp_dir"

told='' memory_before=$(memory_faults)
for name in TERM USR1 USR2; do trap 'forward '$name "$name"; done
if [[ -e $(again_file) ]]; then
  TFAGENTS_SUBMITTED_AGAIN=$(<"$(again_file)")
  export TFAGENTS_SUBMITTED_AGAIN
fi
start_run "${@:2}"
if [[ -n $told ]]; then forward "$told"; fi
wait_for_run
leave_nodes

case $code in
  0) end 0 "finished" ;;
  2) end 2 "not requeued: something must be changed first, see above" ;;
esac
if lacked_memory "$memory_before"; then
  end 1 "not requeued: the kernel has killed a process for lack of memory: ask for more (--mem)"
fi
goes_on || end "$code" "failed with exit code $code, not requeued: see $exp_dir/logs"
outcome=saved
if ((code != 75)); then outcome="ended with exit code $code"; fi
if is_to_blame; then start=blamed; else start=excused; fi
end_attempt $start || end 1 "not requeued: $idle attempts in a row have saved no update after step $last_step, nor more" \
  "experience: give it more time (--time), or see above and $exp_dir/logs for what is in its way"
requeue
