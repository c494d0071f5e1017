# shellcheck shell=bash
# What the launchers share: which Python runs the toolkit, what surrounds a run, and how a start's one process begins.
# shellcheck disable=SC2154 # vars_file.sh sets tfagents_vars, tfagents_virtual_env and tfagents_conda_prefix.

# shellcheck source=tfagents_system/launch/shell_variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell_variables.sh"

# Process 1 of a container ignores signals that it does not handle.
if (($$ == 1)); then
  trap 'exit 143' TERM
  trap 'exit 130' INT
  trap 'exit 129' HUP
fi

fail() {
  echo "error: $*" >&2
  exit 2
}

# Whether this is the login node of a SLURM cluster, where nobody should train. A `sbatch` alone proves nothing: SLURM's
# packages may be installed where there is no cluster.
is_login_node() {
  [[ -z ${SLURM_JOB_ID:-} ]] && command -v sbatch >/dev/null && command -v scontrol >/dev/null \
    && [[ $(timeout 5 scontrol ping 2>/dev/null) == *" is UP"* ]]
}

refuse_login_node() {
  if [[ ${SAC_ALLOW_LOGIN:-0} == 1 ]] || ! is_login_node; then return 0; fi
  fail "this machine submits to a SLURM cluster, and this is no job: submit the run (./submit.sh $tfagents_vars)," \
    "or set SAC_ALLOW_LOGIN=1 to train right here"
}

# The environment of all programs of a run on a machine: SAC_JOB_PRELUDE and SAC_EXEC_PREFIX.

# In a container it is another one; behind a prefix such as `nice` it is the same.
file_system() { echo "$(readlink /proc/self/ns/mnt) $(stat --dereference --format=%d:%i /)"; }

# What the run needs of its environment, as arguments of `env`: a container may drop all else (apptainer's --cleanenv).
# Arguments can be read by everybody on the machine: the prelude, where secrets belong, and keys are not among them.
kept_environment() {
  local name
  tfagents_kept=()
  for name in $(compgen -e); do
    case $name in
      SAC_JOB_PRELUDE | SLURM_JWT | WANDB_API_KEY | MLFLOW_TRACKING_PASSWORD | MLFLOW_TRACKING_TOKEN) ;;
      SAC_* | SLURM_* | TFAGENTS_* | WANDB_* | MLFLOW_* | TMPDIR | CUDA_VISIBLE_DEVICES) tfagents_kept+=("$name=${!name}") ;;
    esac
  done
  tfagents_kept+=("TFAGENTS_HOST_VIRTUAL_ENV=${VIRTUAL_ENV:-}" "TFAGENTS_HOST_CONDA_PREFIX=${CONDA_PREFIX:-}")
  tfagents_kept+=("TFAGENTS_SURROUNDED=$(file_system)")
}

activate() { # VIRTUAL_ENV CONDA_PREFIX
  unset VIRTUAL_ENV CONDA_PREFIX
  if [[ -n $1 ]]; then export VIRTUAL_ENV=$1; fi
  if [[ -n $2 ]]; then export CONDA_PREFIX=$2; fi
}

# Called after vars_file.sh, with the launcher's own command, which SAC_EXEC_PREFIX starts once more, inside.
# The second time it only has to forget the host's environment of Python: setup.sh looks for one inside.
surround() { # LAUNCHER ARGUMENT...
  local tfagents_prefix
  if [[ -z ${TFAGENTS_SURROUNDED:-} ]]; then
    if [[ -n ${SAC_EXEC_PREFIX:-} ]]; then
      read -ra tfagents_prefix <<<"$SAC_EXEC_PREFIX"
      command -v "${tfagents_prefix[0]}" >/dev/null \
        || fail "SAC_EXEC_PREFIX=$SAC_EXEC_PREFIX: there is no program ${tfagents_prefix[0]} on this machine"
      kept_environment
      activate '' ''
      exec "${tfagents_prefix[@]}" env "${tfagents_kept[@]}" "$@"
    fi
  elif [[ $TFAGENTS_SURROUNDED == "$(file_system)" ]]; then
    activate "${TFAGENTS_HOST_VIRTUAL_ENV:-}" "${TFAGENTS_HOST_CONDA_PREFIX:-}"
  else
    activate "$tfagents_virtual_env" "$tfagents_conda_prefix"
    export TFAGENTS_CONTAINER=1
  fi
  unset TFAGENTS_SURROUNDED
}

# That of setup.sh in a repository; where the package was installed with pip, the Python that it was installed for.
toolkit_python() { # ROOT -> its path
  if [[ -f $1/setup.sh ]]; then
    "$1/setup.sh" --print-python
  else
    [[ -x ${SAC_PYTHON:-} ]] \
      || fail "SAC_PYTHON=${SAC_PYTHON:-} must be the path of the Python that tfagents_system is installed for: set it, or use sac"
    echo "$SAC_PYTHON"
  fi
}

# The process that checks, starts and supervises takes the shell's place: signals reach one process at every moment.
become_supervisor() { # ROOT MODULE ARGUMENT...
  local python name
  clean_shell # Also of what the vars file and SAC_JOB_PRELUDE have set.
  python=$(toolkit_python "$1")
  lead_python_path "$1"
  export PYTHONUNBUFFERED=1
  # It forks all others, so it must have one thread: BLAS libraries start theirs when they are loaded (forks.py).
  for name in OPENBLAS_NUM_THREADS OMP_NUM_THREADS MKL_NUM_THREADS; do
    if [[ -n ${!name:-} ]]; then export "TFAGENTS_OWN_$name=${!name}"; fi
    export "$name=1"
  done
  # Room in /proc for what marks the run's processes (forks.py): a path and 400 bytes more.
  printf -v TFAGENTS_ROOM '%4496s' ''
  export TFAGENTS_ROOM
  exec "$python" -P -m "$2" "${@:3}"
}
