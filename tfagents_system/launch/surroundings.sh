# shellcheck shell=bash
# What all programs of a run live in on a machine: SAC_JOB_PRELUDE, SAC_PACKED_ENV and SAC_EXEC_PREFIX.
#
# Sourced by a launcher that has a function `fail`, after the vars file; "$@" is the launcher's own command, which
# SAC_EXEC_PREFIX starts once more, inside. The second time there is nothing left to do.

unpack_environment() { # ARCHIVE
  local scratch=${SLURM_TMPDIR:-${TMPDIR:-/tmp}} identity folder
  [[ -f $1 && -r $1 ]] || fail "SAC_PACKED_ENV=$1 is missing or cannot be read: give the path of an archive"
  identity=$(stat --dereference --format='%n %s %Y' -- "$1" | sha256sum)
  folder=$scratch/sac_env_${UID}_${identity:0:12}
  # shellcheck disable=SC2174
  mkdir -p -m 700 "$folder" 2>/dev/null && [[ -O $folder ]] \
    || fail "$folder can't be made, or is another user's: set TMPDIR to a folder on this node that is yours"
  exec 9>"$folder/.lock"
  flock --timeout 1800 9 || fail "$folder has been locked for 30 minutes: end who unpacks there, then try again"
  if [[ ! -e $folder/.complete ]]; then
    echo "unpacking $1 into $folder" >&2
    mkdir -p "$folder/env"
    tar -xf "$1" -C "$folder/env" || fail "SAC_PACKED_ENV=$1 can't be unpacked into $folder: see above"
    [[ -x $folder/env/bin/python ]] \
      || fail "SAC_PACKED_ENV=$1 has no bin/python: pack the environment's own folder (conda pack, or tar -C ENV .)"
    if [[ -x $folder/env/bin/conda-unpack ]]; then "$folder/env/bin/python" "$folder/env/bin/conda-unpack" >&2; fi
    touch "$folder/.complete" # Last: what was interrupted is unpacked again.
  fi
  exec 9>&-
  unset CONDA_PREFIX
  export VIRTUAL_ENV=$folder/env PATH=$folder/env/bin:$PATH
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
    export TFAGENTS_SURROUNDED=1
    exec "${tfagents_prefix[@]}" "$@"
  fi
fi
unset TFAGENTS_SURROUNDED
