# shellcheck shell=bash
# The environment of all programs of a run on a machine: SAC_JOB_PRELUDE, SAC_PACKED_ENV and SAC_EXEC_PREFIX.
#
# Sourced by a launcher that has a function `fail`, after the vars file; "$@" is the launcher's own command, which
# SAC_EXEC_PREFIX starts once more, inside. The second time it only has to forget the host's environment of
# Python: setup.sh looks for one inside.

# Others know the name and may have made it, or a link: only a folder of ours is used, which nobody can exchange. Fails
# as well if launch/clean.py removes the folder meanwhile.
lock_environment() { # FOLDER: holds its lock, as 9
  mkdir -m 700 "$1" 2>/dev/null || true
  [[ $(LC_ALL=C stat --format='%u %F' -- "$1" 2>/dev/null) == "$EUID directory" ]] || return 1
  chmod 700 "$1" && { exec 9>"$1/.lock"; } 2>/dev/null || return 1
  flock --timeout 1800 9 || fail "$1 has been locked for 30 minutes: end who unpacks there, then try again"
  [[ /dev/fd/9 -ef $1/.lock ]]
}

unpack_environment() { # ARCHIVE
  local scratch=${SLURM_TMPDIR:-${TMPDIR:-/tmp}} identity folder
  [[ -f $1 && -r $1 ]] || fail "SAC_PACKED_ENV=$1 is missing or cannot be read: give the path of an archive"
  identity=$(stat --dereference --format='%n %s %Y' -- "$1" | sha256sum)
  # Of this machine: launch/clean.py on another one that shares the file system does not see who uses it here.
  folder=$scratch/sac_env_${UID}_${identity:0:12}_$(uname -n)
  mkdir -p "$scratch" 2>/dev/null || true
  lock_environment "$folder" || lock_environment "$folder" \
    || fail "$folder can't be made, is a link, or is another user's: set TMPDIR to a folder on this node that is yours"
  if [[ ! -e $folder/.complete ]]; then
    echo "unpacking $1 into $folder" >&2
    mkdir -p "$folder/env"
    tar -xf "$1" -C "$folder/env" || fail "SAC_PACKED_ENV=$1 can't be unpacked into $folder: see above"
    [[ -x $folder/env/bin/python ]] \
      || fail "SAC_PACKED_ENV=$1 has no bin/python: pack the environment's own folder (conda pack, or tar -C ENV .)"
    if [[ -x $folder/env/bin/conda-unpack ]]; then "$folder/env/bin/python" "$folder/env/bin/conda-unpack" >&2; fi
    touch "$folder/.complete" # Last: after an interruption it is unpacked again.
  fi
  exec 9>&-
  unset CONDA_PREFIX
  export VIRTUAL_ENV=$folder/env PATH=$folder/env/bin:$PATH
}

# In a container it is another one; behind a prefix such as `nice` it is the same.
file_system() { echo "$(readlink /proc/self/ns/mnt) $(stat --dereference --format=%d:%i /)"; }

# What the run needs of its environment, as arguments of `env`: a container may drop all else (apptainer's --cleanenv).
# Arguments can be read by everybody on the machine: the prelude, where secrets belong, is not among them.
kept_environment() {
  local name
  tfagents_kept=()
  for name in $(compgen -e); do
    case $name in
      SAC_JOB_PRELUDE) ;;
      SAC_* | SLURM_* | TFAGENTS_* | TMPDIR | CUDA_VISIBLE_DEVICES) tfagents_kept+=("$name=${!name}") ;;
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
    eval "$SAC_JOB_PRELUDE" || fail "SAC_JOB_PRELUDE ends with exit code $?: see above, and correct it: $SAC_JOB_PRELUDE"
    set -eu
  fi
  if [[ -n ${SAC_PACKED_ENV:-} ]]; then unpack_environment "$SAC_PACKED_ENV"; fi
  if [[ -n ${SAC_EXEC_PREFIX:-} ]]; then
    read -ra tfagents_prefix <<<"$SAC_EXEC_PREFIX"
    command -v "${tfagents_prefix[0]}" >/dev/null \
      || fail "SAC_EXEC_PREFIX=$SAC_EXEC_PREFIX: there is no program ${tfagents_prefix[0]} on this machine"
    kept_environment
    activate '' ''
    exec "${tfagents_prefix[@]}" env "${tfagents_kept[@]}" "$@"
  fi
elif [[ $TFAGENTS_SURROUNDED == "$(file_system)" || -n ${SAC_PACKED_ENV:-} ]]; then
  activate "${TFAGENTS_HOST_VIRTUAL_ENV:-}" "${TFAGENTS_HOST_CONDA_PREFIX:-}"
else
  activate "$tfagents_virtual_env" "$tfagents_conda_prefix"
  export TFAGENTS_CONTAINER=1
fi
unset TFAGENTS_SURROUNDED
