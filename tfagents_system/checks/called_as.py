"""What the user has called, and where."""

import os
import re
from collections.abc import Collection

NAME_VARIABLE = "TFAGENTS_COMMAND"  # Set by `sac`, such as `sac status`.
PYTHON_VARIABLE = "TFAGENTS_PYTHON"  # Set by `tfagents_system.train`, which starts `sac train`.


def called_as(otherwise: str) -> str:
    """`sac status`, or what the program is called without `sac`."""
    return os.environ.get(NAME_VARIABLE) or otherwise


def option(edits: str) -> str:
    """`--keep`, or what a caller of `tfagents_system.train` writes for it."""
    return f'edits="{edits}"' if os.environ.get(PYTHON_VARIABLE) else f"--{edits}"


# What a caller of `tfagents_system.train` writes for a variable or an option of its start.
_ARGUMENTS = {
    "SAC_CONFIG": "config",
    "SAC_PARAMS": "params",
    "SAC_EXP_NAME": "name",
    "SAC_NUM_COLLECT_WORKERS": "workers",
    "SAC_SEED": "seed",
    "--set": "attributes",
}


def in_arguments(finding: str, own: Collection[str] = ()) -> str:
    """What a start has found, in the words of a caller of `tfagents_system.train`: `config` instead of SAC_CONFIG.

    Args:
      own: Variables that the caller has given by their own names.
    """
    if "is not a known variable" in finding:  # Who misspelt it means the variable.
        return finding
    names = {name: argument for name, argument in _ARGUMENTS.items() if name not in own}
    return re.sub(r"(?<![\w/@-])(?:--|SAC_)\w+(?![\w/-])", lambda found: names.get(found[0], found[0]), finding)
