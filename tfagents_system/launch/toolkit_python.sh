# shellcheck shell=bash
# Which Python runs the toolkit. Sourced by the launchers.

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
