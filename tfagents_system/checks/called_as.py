"""What the user has called, and where."""

import os
from pathlib import Path

NAME_VARIABLE = "TFAGENTS_COMMAND"  # Set by `sac`, such as `sac status`.
PYTHON_VARIABLE = "TFAGENTS_PYTHON"  # Set by `tfagents_system.train`, which starts `sac train`.


def called_as(otherwise: str) -> str:
    """`sac status`, or what the program is called without `sac`."""
    return os.environ.get(NAME_VARIABLE) or otherwise


def option(edits: str) -> str:
    """`--keep`, or what a caller of `tfagents_system.train` writes for it."""
    return f'edits="{edits}"' if os.environ.get(PYTHON_VARIABLE) else f"--{edits}"


def run_name_of(params: Path) -> str:
    """The name of a run for which none is given: the file's without `_params`, of `params.py` its folder's.

    Args:
      params: Absolute.
    """
    return params.parent.name if params.stem == "params" else params.stem.removesuffix("_params")
