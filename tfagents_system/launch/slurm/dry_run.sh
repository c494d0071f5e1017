# shellcheck shell=bash
# What a submission would do; nothing is written. Sourced by submit.sh.

# Only the job script goes to standard output: `submit.sh ... --dry_run >job.sbatch`.
dry_run() { # SNAPSHOT
  local report assignment
  show_submission "$1" >&2
  job_script "$1"
  report=$(mktemp)
  # shellcheck disable=SC2064
  trap "rm -f -- $(quoted "$report")" EXIT
  forget_late
  # The user's own file is checked, and not the one that would be frozen.
  while read -r assignment; do tfagents_settings+=(--set "$assignment"); done < <(variables_of_nodes)
  check_job "$tfagents_root" "$tfagents_vars" "$report"
}

show_submission() { # SNAPSHOT
  echo "nothing is submitted. Without --dry_run, from $PWD:"
  submit_job show_sbatch "$1/job.sbatch"
  echo "run directory: $tfagents_exp_dir${tfagents_array:+_task_<id>}"
  echo "each attempt of the job runs:"
  show_command "$1/package/tfagents_system/launch/run_script.sh" "$1/variables.sh" ${tfagents_settings[@]+"${tfagents_settings[@]}"}
  echo "the job script:"
}

show_sbatch() { show_command sbatch "$@"; }

show_command() { # WORD...
  local line
  printf -v line ' %q' "$@"
  echo " $line"
}
