# shellcheck shell=bash
# Whether a run that is requeued repeatedly makes progress. Sourced by job.sh, which sets exp_dir and snapshot.
#
# <exp_dir>/requeues holds one line: saved train step, env steps of the saved experience, attempts in a row that added to
# neither, whether the last attempt has ended in words (`closed`) or died without one (`open`), and the snapshot that they
# ran.

readonly MOST_IDLE=2      # Attempts that could save but had nothing new.
readonly MOST_IDLE_OPEN=5 # Attempts that died without a word, such as with their node or by preemption without grace.

# The train step of the newest complete checkpoint (run_checkpoints.py); 0 without one.
saved_step() {
  local folder step=0
  for folder in "$exp_dir"/checkpoints/checkpoint_[0-9]*; do
    if [[ $folder =~ /checkpoint_([0-9]{10,})(_[0-9]+)?$ && -e $folder/manifest.json ]]; then
      step=$((10#${BASH_REMATCH[1]} > step ? 10#${BASH_REMATCH[1]} : step))
    fi
  done
  echo "$step"
}

# Env steps of the experience. A run that has saved all of it (exit code 75) goes on with them.
stored_steps() {
  local steps
  steps=$(sed -nE 's/.*"env_steps": *([0-9]+).*/\1/p' "$exp_dir/heartbeats/replay.json" 2>/dev/null)
  echo "${steps:-0}"
}

# Whether the attempt recorded in $exp_dir/requeues came so far that it could have trained.
was_at_work() {
  local beat=$exp_dir/heartbeats/trainer.json
  [[ $beat -nt $exp_dir/requeues ]] && ! grep -q '"state": *"starting"' "$beat"
}

read_progress() {
  local of=''
  last_step=0 last_stored=0 idle=0 attempt=closed
  if [[ -r $exp_dir/requeues ]]; then read -r last_step last_stored idle attempt of <"$exp_dir/requeues" || true; fi
  # Somebody submitted the run again: it may have what it lacked.
  if [[ $of != "$snapshot" || ! "$last_step $last_stored $idle" =~ ^[0-9]+\ [0-9]+\ [0-9]+$ ]]; then
    last_step=$(saved_step) last_stored=$(stored_steps) idle=0 attempt=closed
  fi
}

write_progress() { # open|closed
  mkdir -p "$exp_dir"
  echo "$last_step $last_stored $idle $1 $snapshot" >"$exp_dir/requeues.new" && mv -f "$exp_dir/requeues.new" "$exp_dir/requeues"
}

# Counts the attempt that is over. One that was told to stop during its start-up does not count (`excused`). Experience
# alone counts where all was saved: while the first of it is collected there are no updates.
judge_attempt() { # [excused|blamed]
  local step stored=$last_stored
  step=$(saved_step)
  if [[ ${code:-} == 75 ]]; then stored=$(stored_steps); fi
  if ((step != last_step || stored > last_stored)); then
    idle=0 last_step=$step last_stored=$stored
  elif [[ ${1:-excused} == blamed ]] || was_at_work; then
    idle=$((idle + 1))
  fi
}

begin_attempt() {
  read_progress
  if [[ $attempt == open ]]; then judge_attempt; fi
  write_progress open
  ((idle < MOST_IDLE_OPEN))
}

end_attempt() { # excused|blamed
  judge_attempt "$1"
  write_progress closed
  ((idle < MOST_IDLE))
}
