# shellcheck shell=bash
# What the user's shell carries to every program of a run, cleaned before the first Python of each entry.

# NAME or NAME=PATTERN of what is removed, and why; docs/reference/variables.md shows it.
tfagents_shell_variables='
PYTHONHOME               names the library of another Python (module load), with which this one does not start
PYTHONOPTIMIZE           2 drops docstrings, which TensorFlow reads; 1 drops checks
PYTHONWARNINGS=*error*   TensorFlow and TF-Agents warn when they are imported
PYTHONINSPECT            programs would wait for input at their end
TF_USE_LEGACY_KERAS      asks for the package tf_keras; Keras 2 is in TensorFlow 2.15 itself
PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=cpp  protobuf 4 no longer has this part
TF_DETERMINISTIC_OPS     TensorFlow then refuses random numbers without a seed; SAC_DETERMINISTIC=1 repeats runs
'

# Removes these, and the folders of other Pythons from PYTHONPATH, with a line for each on stderr.
clean_shell() {
  local name why folder kept='' other=''
  while read -r name why; do
    [[ $name =~ ^([A-Z_0-9]+)=?(.*)$ && -v ${BASH_REMATCH[1]} ]] || continue
    name=${BASH_REMATCH[1]}
    # shellcheck disable=SC2053 # The right side is a pattern.
    [[ ${!name} == ${BASH_REMATCH[2]:-*} ]] || continue
    [[ -z ${!name} ]] || echo "note: the run does without $name=${!name}: $why" >&2
    unset "$name"
  done <<<"$tfagents_shell_variables"
  while read -r -d : folder; do
    if [[ $folder/ =~ .*/lib(64)?/python([0-9]+\.[0-9]+)/ && ${BASH_REMATCH[2]} != 3.11 ]]; then
      other+=:$folder
    elif [[ $folder ]]; then
      kept+=:$folder
    fi
  done <<<"${PYTHONPATH:-}:"
  if [[ $other ]]; then
    echo "note: PYTHONPATH has folders of another Python, which only SAC_ENV_PYTHON's gets: ${other#:}" >&2
    export PYTHONPATH=${kept#:} TFAGENTS_OTHER_PYTHONPATH=${other#:}
  fi
}

# A program's own modules come first, those of PYTHONPATH and of the current folder last: none hides what the toolkit
# imports. Once it runs, PYTHONPATH is theirs again (__init__.py).
lead_python_path() { # ROOT
  export TFAGENTS_OWN_PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}:$PWD" PYTHONPATH=$1
}
