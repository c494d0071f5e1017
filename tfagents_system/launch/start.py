"""A start of a run: one process that checks, prepares, forks the roles and supervises them to the run's end.

    python -m tfagents_system.launch.start --vars-file VARS.sh [--set NAME=VALUE]... [--check]

Executed by train_script.sh. Exit codes: 0 the run is finished, 1 it failed, 2 bad input, 75 it was stopped and
everything is saved: the same command continues. Before the run has begun, a signal ends it by that signal.

Children that users' code starts anew import this file as theirs: it imports nothing that takes time.
"""

from __future__ import annotations

import signal


def main() -> int:
    """The program; returns its exit code."""
    from tfagents_system.launch import forks

    forks.end_early_on_signals()  # Before the other imports, which take half a second.
    from tfagents_system.launch import prepare

    forks.restore_variables()
    return prepare.main(starts=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Without a traceback, from the first moment on.
    from tfagents_system.errors import exit_with

    exit_with(main)
