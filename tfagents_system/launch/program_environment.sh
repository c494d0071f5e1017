# shellcheck shell=bash
# The environment of all programs of a run on a machine: SAC_JOB_PRELUDE and SAC_EXEC_PREFIX.
#
# Sourced by a launcher that has a function `fail`, after the vars file; "$@" is the launcher's own command, which
# SAC_EXEC_PREFIX starts once more, inside. The second time it only has to forget the host's environment of
# Python: setup.sh looks for one inside.

# In a container it is another one; behind a prefix such as `nice` it is the same.
file_system() { echo "$(readlink /proc/self/ns/mnt) $(stat --dereference --format=%d:%i /)"; }

# What the run needs of its environment, as arguments of `env`: a container may drop all else (apptainer's --cleanenv).
# Arguments can be read by everybody on the machine: the prelude, where secrets belong, and keys are not among them.
kept_environment() {
  local name
  tfagents_kept=()
  for name in $(compgen -e); do
    case $name in
      SAC_JOB_PRELUDE) ;;
      SLURM_JWT | WANDB_API_KEY | MLFLOW_TRACKING_PASSWORD | MLFLOW_TRACKING_TOKEN) ;;
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

if [[ -z ${TFAGENTS_SURROUNDED:-} ]]; then
  if [[ -n ${SLURM_JOB_ID:-} && -n ${SAC_JOB_PRELUDE:-} ]]; then
    set +eu # Such as `module` is not written for these.
    eval "$SAC_JOB_PRELUDE" || fail "SAC_JOB_PRELUDE ends with exit code $?: see above, and correct it (it is not shown, for it may hold tokens)"
    set -eu
  fi
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
