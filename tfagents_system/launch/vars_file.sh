# shellcheck shell=bash
# Sources the user's vars file, $tfagents_vars, at the top level of a launcher, and makes its path absolute. In a job it runs
# SAC_JOB_PRELUDE there: what a function declares (`declare -x`) would be lost.
#
# Plain assignments count as well as exported ones. Unset names in a user's file are the user's business; a command
# that fails, a syntax error or an `exit` is reported with the file's name, by the trap on EXIT.
[[ -f $tfagents_vars && -r $tfagents_vars ]] \
  || fail "vars file $tfagents_vars is missing or cannot be read: give" \
    "$([[ -f $tfagents_vars/vars.sh ]] && echo "${tfagents_vars%/}/vars.sh" || echo 'the path of a file such as training_variables.sh')"
case $tfagents_vars in
  *.py | *.json) fail "$tfagents_vars is no vars file: give one, or train it as it is: sac train PARAMS.py --config JSON" ;;
esac
# Bash takes them for names and values.
! LC_ALL=C grep -q $'^\xef\xbb\xbf\|\r$' "$tfagents_vars" \
  || fail "vars file $tfagents_vars was written by an editor of Windows, with carriage returns or a byte order mark:" \
    "sed -i 's/^\\xef\\xbb\\xbf//; s/\\r\$//' '$tfagents_vars' removes them"
tfagents_fault=$(LC_ALL=C bash -O extglob -n "$tfagents_vars" 2>&1) \
  || fail "vars file ${tfagents_fault%%$'\n'*}: correct this line, or one above it"
tfagents_vars=$(cd "$(dirname "$tfagents_vars")" && pwd)/$(basename "$tfagents_vars")
tfagents_line=
tfagents_pwd=$PWD
# shellcheck disable=SC2034
tfagents_virtual_env=${VIRTUAL_ENV:-} tfagents_conda_prefix=${CONDA_PREFIX:-} # In a container: the image's own.
trap 'tfagents_line=$LINENO' ERR
trap 'trap - EXIT; fail "vars file $tfagents_vars fails${tfagents_line:+ (line $tfagents_line)}: see above (exit says nothing, = has no spaces), and correct it"' EXIT
set -a +u
# shellcheck source=/dev/null
source "$tfagents_vars"
trap - EXIT ERR
set +a -euo pipefail
cd "$tfagents_pwd" 2>/dev/null || fail "the folder in which this was called, $tfagents_pwd, is gone: cd into one that exists"

if [[ -z ${TFAGENTS_SURROUNDED:-} && -n ${SLURM_JOB_ID:-} && -n ${SAC_JOB_PRELUDE:-} ]]; then
  set +eu # Such as `module` is not written for these.
  eval "$SAC_JOB_PRELUDE" || fail "SAC_JOB_PRELUDE ends with exit code $?: see above, and correct it (it is not shown, for it may hold tokens)"
  set -eu
fi
