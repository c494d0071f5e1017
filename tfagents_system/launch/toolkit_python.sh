# shellcheck shell=bash
# Which Python runs the toolkit, and how a start's one process begins. Sourced by the launchers.

# Process 1 of a container ignores signals that it does not handle.
if (($$ == 1)); then
  trap 'exit 143' TERM
  trap 'exit 130' INT
  trap 'exit 129' HUP
fi

# That of setup.sh in a repository; where the package was installed with pip, the Python that it was installed for.
toolkit_python() { # ROOT -> its path
  if [[ -f $1/setup.sh ]]; then
    "$1/setup.sh" --print-python
  elif [[ -x ${SAC_PYTHON:-} ]]; then
    echo "$SAC_PYTHON"
  else
    echo "error: SAC_PYTHON=${SAC_PYTHON:-} must be the path of the Python that tfagents_system is installed for: set it, or use sac" >&2
    exit 2
  fi
}

# The process that checks, starts and supervises takes the shell's place: signals reach one process at every moment.
become_supervisor() { # ROOT MODULE ARGUMENT...
  local python name
  python=$(toolkit_python "$1")
  # The repository comes first, the folder of the user last: neither hides the other's modules, nor Python's own.
  export PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}:$PWD" PYTHONUNBUFFERED=1
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
