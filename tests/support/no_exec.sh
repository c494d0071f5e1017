# shellcheck shell=bash
# Sourced by bash before a launcher (BASH_ENV): what would become a start's one process tells how it would be called, to
# the process of the tests that becomes it (warm_starts.py).
case $0 in
  */train_script.sh | */join_script.sh)
    exec() { # PYTHON -P -m MODULE ARGUMENT...
      printf '%s\0' "${@:4}" >"$TESTS_TELL.arguments"
      env -0 >"$TESTS_TELL.environ"
      exit 0
    }
    ;;
esac
