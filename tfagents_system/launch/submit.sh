#!/usr/bin/env bash
# Submits a run to SLURM, or an array of them: freezes its inputs, writes the job script, calls sbatch.
set -euo pipefail

usage() {
  sed "s#\./submit\.sh#${TFAGENTS_COMMAND:-./submit.sh}#" <<'HELP'
Usage: ./submit.sh VARS.sh [--dry_run] [--no_check] [--array IDS] [--nodes K] [--set NAME=VALUE]... [--keep]
                   [--from RUN[@CHECKPOINT] [--take WHAT]] [SBATCH_OPTION...] [-- OPTION_OF_THIS_CLUSTER...]

VARS.sh assigns the SAC_ variables (see training_variables.sh). The job has the CPUs and the memory that they ask for; it is
requeued until the run is finished. SBATCH_OPTIONs, such as --time 24:00:00 --partition long, win over what is asked for here.

  --dry_run    print the job script, and on standard error the sbatch command; make the checks; write and submit nothing
  --no_check   submit without the check of params, environment and memory, which takes up to 20 s
  --array IDS  one run for each id, such as 0-9: run directory logs/<name>_task_<id>, seed SAC_SEED + id
  --nodes K    replay server and trainer on the first node, with the GPU, and SAC_NUM_COLLECT_WORKERS workers on each
  --set ...    overrides an attribute or a key of the JSON, as for run_script.sh; variables (SAC_...) belong in VARS.sh
  --keep       a run whose files were edited since its start goes on with its own copies, as for run_script.sh
  --from, --take
               what a new run takes from another one, as for run_script.sh

Exit codes: those of sbatch; 2 something must be changed first.
HELP
}

fail() {
  echo "error: $*" >&2
  exit 2
}

tfagents_root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
# In a copy of the repository without links this file lies at its top.
[[ -d $tfagents_root/tfagents_system ]] || tfagents_root=$(cd "$tfagents_root/../.." && pwd)
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit 0
fi
(($#)) || fail "VARS.sh is missing: ${TFAGENTS_COMMAND:-./submit.sh} VARS.sh, or --help"
[[ $1 != -* ]] || fail "$1: the vars file comes first, as in ${TFAGENTS_COMMAND:-./submit.sh} my_vars.sh --time 4:00:00"
[[ -f $1 && -r $1 ]] || fail "vars file $1 is missing or cannot be read: give the path of a file such as training_variables.sh"
tfagents_vars=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
tfagents_vars_folder=$(dirname "$(readlink -f "$tfagents_vars")") # As Python has it.
shift
# shellcheck source=tfagents_system/launch/slurm/options.sh
source "$tfagents_root/tfagents_system/launch/slurm/options.sh"
read_options "$@"

# shellcheck source=tfagents_system/launch/toolkit_python.sh
source "$tfagents_root/tfagents_system/launch/toolkit_python.sh"
# shellcheck source=tfagents_system/launch/slurm/snapshot.sh
source "$tfagents_root/tfagents_system/launch/slurm/snapshot.sh"
# shellcheck source=tfagents_system/launch/slurm/request.sh
source "$tfagents_root/tfagents_system/launch/slurm/request.sh"
# shellcheck source=tfagents_system/launch/slurm/job_script.sh
source "$tfagents_root/tfagents_system/launch/slurm/job_script.sh"
# shellcheck source=tfagents_system/launch/slurm/check.sh
source "$tfagents_root/tfagents_system/launch/slurm/check.sh"
# shellcheck source=tfagents_system/launch/slurm/dry_run.sh
source "$tfagents_root/tfagents_system/launch/slurm/dry_run.sh"
forget_devices
tfagents_saved=$(declare -p "${LATE[@]}" 2>/dev/null || true)
for tfagents_name in "${LATE[@]}"; do declare "$tfagents_name=@$tfagents_name@"; done
# shellcheck source=tfagents_system/launch/vars_file.sh
source "$tfagents_root/tfagents_system/launch/vars_file.sh"
if [[ $tfagents_from ]]; then export SAC_FROM=$tfagents_from; fi
if [[ $tfagents_take ]]; then export SAC_TAKE=$tfagents_take; fi
keep_scratch
unset "${LATE[@]}"
eval "$tfagents_saved"

tfagents_python=$(login_python || true)
tfagents_findings=()
tfagents_logs_dir=$(absolute "${SAC_LOGS_DIR:-logs}")
tfagents_exp_dir=$(absolute "${SAC_EXP_DIR:-$tfagents_logs_dir/${SAC_EXP_NAME:-}}")
tfagents_submit_dir=$tfagents_exp_dir${tfagents_array:+_array}
tfagents_snapshot=$tfagents_submit_dir/snapshot/$(date +%Y%m%d-%H%M%S)-$$
check_request
check_params_folder
check_place
if ((${#tfagents_findings[@]})); then
  printf 'error: %s\n' "${tfagents_findings[@]}" >&2
  exit 2
fi
if ((tfagents_dry_run)); then
  dry_run "$tfagents_snapshot"
  exit 0
fi
write_snapshot "$tfagents_snapshot"
check_job "$tfagents_snapshot/package" "$tfagents_snapshot/variables.sh" "$tfagents_snapshot/check.txt" "$tfagents_snapshot"
echo "run directory $tfagents_exp_dir${tfagents_array:+_task_<id>}, job script $tfagents_snapshot/job.sbatch" >&2
submit_snapshot "$tfagents_snapshot"
