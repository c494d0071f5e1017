# shellcheck shell=bash
# What the end of an attempt means. Sourced by job.sh, which sets exp_dir and code, the run's exit code.

# Grows when the kernel kills a process of this job for lack of memory: the count of the job's own cgroup, and SLURM's
# word on its steps. The count of the whole node is useless: it includes other jobs.
memory_faults() {
  local kills word=0
  kills=$(awk '$1 == "oom_kill" {print $2}' "$(job_cgroup)/memory.events" 2>/dev/null)
  if [[ $(job_says DerivedExitCode) == 0:125 ]]; then word=1; fi
  echo $((${kills:-0} + word))
}

job_cgroup() {
  echo "/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup | grep -o '^.*/job_[0-9]*')"
}

# A run that has saved all the same continues.
lacked_memory() { # FAULTS_BEFORE
  ((code != 75 && $(memory_faults) > $1))
}

has_saved() { ((code == 75)); }

was_killed() { ((code > 128)); }

# Whether the run was stopped but ran out of time to save: what it saved before remains.
was_stopped() {
  ((code == 1)) && [[ $exp_dir/status.json -nt $exp_dir/requeues ]] \
    && grep -q '"message": *"stopped by SIG' "$exp_dir/status.json"
}

goes_on() { has_saved || was_killed || was_stopped; }

# Whether the run was told to stop (exit code 75, or killed by SIGINT, SIGUSR1, SIGUSR2 or SIGTERM).
was_told() {
  case $code in
    75 | 130 | 138 | 140 | 143) return 0 ;;
    *) was_stopped ;;
  esac
}

# Whether an attempt that never completed its start counts: with as little time, or for a reason of its own such as a
# launch that fails, the next one would end the same way. One that was only told to stop is excused.
is_to_blame() { ! was_told || is_at_time_limit; }
