"""What the user has called, and where."""

import os

NAME_VARIABLE = "TFAGENTS_COMMAND"  # Set by `sac`, such as `sac status`.
FOLDER_VARIABLE = "TFAGENTS_FOLDER"  # Set by it, too: relative run directories are in that folder.


def called_as(otherwise: str) -> str:
    """`sac status`, or what the program is called without `sac`."""
    return os.environ.get(NAME_VARIABLE) or otherwise
