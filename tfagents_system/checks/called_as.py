"""What the user has called, and where."""

import os

NAME_VARIABLE = "TFAGENTS_COMMAND"  # Set by `sac`, such as `sac status`.
PYTHON_VARIABLE = "TFAGENTS_PYTHON"  # Set by `tfagents_system.train`, which starts `sac train`.


def called_as(otherwise: str) -> str:
    """`sac status`, or what the program is called without `sac`."""
    return os.environ.get(NAME_VARIABLE) or otherwise


def option(edits: str) -> str:
    """`--keep`, or what a caller of `tfagents_system.train` writes for it."""
    return f'edits="{edits}"' if os.environ.get(PYTHON_VARIABLE) else f"--{edits}"
