"""What the user has called, and where."""

import os

NAME_VARIABLE = "TFAGENTS_COMMAND"  # Set by `sac`, such as `sac status`.
PYTHON_VARIABLE = "TFAGENTS_PYTHON"  # Set by `tfagents_system.train`, which starts `sac train`.
FOLDER_VARIABLE = "TFAGENTS_FOLDER"  # Set by it, too: relative run directories are in that folder.


def called_as(otherwise: str) -> str:
    """`sac status`, or what the program is called without `sac`."""
    return os.environ.get(NAME_VARIABLE) or otherwise


def other_command(command: str, otherwise: str) -> str:
    """Another command as its user would call it: `sac report` under `sac`, else a program's own name."""
    return f"sac {command}" if os.environ.get(NAME_VARIABLE) else otherwise


def option(edits: str) -> str:
    """`--keep`, or what a caller of `tfagents_system.train` writes for it."""
    return f'edits="{edits}"' if os.environ.get(PYTHON_VARIABLE) else f"--{edits}"
