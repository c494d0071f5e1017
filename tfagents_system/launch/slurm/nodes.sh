# shellcheck shell=bash
# The programs of an attempt on the nodes of its job: the run on the first one, workers that join it on all others.
# Sourced by job.sh, which sets snapshot and exp_dir.

run='' others='' # Their pids.
status_before='' # Of the run directory, as an earlier attempt has left it.
further_nodes=$((${SLURM_JOB_NUM_NODES:-1} - 1)) first_place=--relative=0 further_place=--relative=1
# A job with a GPU only on its first node consists of two components.
if ((${SLURM_HET_SIZE:-1} > 1)); then
  further_nodes=$SLURM_JOB_NUM_NODES_HET_GROUP_1 first_place=--het-group=0 further_place=--het-group=1
fi

# The variable alone would not suffice: not every version of `srun` takes it over from `sbatch`.
on_nodes() { # COUNT PLACE COMMAND...
  exec srun --nodes="$1" --ntasks="$1" "$2" --cpus-per-task="${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_PER_TASK_HET_GROUP_0:-1}}" \
    --export=ALL --no-kill --kill-on-bad-exit=0 "${@:3}"
}

status_of_run() { stat -c '%i %y' "$exp_dir/status.json" 2>/dev/null; }

start_run() { # [--set NAME=VALUE]...
  TFAGENTS_SINCE=$(date +%s) # What an earlier attempt has left in the run directory is none of those that join.
  export TFAGENTS_SINCE
  status_before=$(status_of_run)
  on_nodes 1 "$first_place" "$snapshot/package/tfagents_system/launch/run_script.sh" "$snapshot/variables.sh" "$@" &
  run=$!
  if ((further_nodes > 0)); then
    on_nodes "$further_nodes" "$further_place" "$snapshot/package/tfagents_system/launch/join_script.sh" "$snapshot/variables.sh" --to "$exp_dir" \
      --workers "$(variable SAC_LOCAL_WORKERS)" &
    others=$!
  fi
}

forward() { # SIGNAL: `srun` passes USR1 on, at a SIGTERM it would kill
  told=$1
  if [[ -n $run ]]; then kill -USR1 "$run" 2>/dev/null; fi
}

wait_for_run() { # sets code; a signal ends `wait`, but not the run
  while
    wait "$run"
    code=$?
    ((code > 128)) && kill -0 "$run" 2>/dev/null
  do :; done
}

# The workers on further nodes see that the run is over; if it never began, as one that is finished already, they would
# wait for it.
leave_nodes() {
  local k secs=$LEAVE_SECS
  if [[ -z $others ]]; then return; fi
  if [[ $(status_of_run) == "$status_before" ]]; then secs=0; fi
  for ((k = 0; k < secs && (code == 0 || code == 75); k++)); do
    kill -0 "$others" 2>/dev/null || return 0
    sleep 1
  done
  kill "$others" 2>/dev/null && wait "$others"
}
