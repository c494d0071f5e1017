"""Refuses to train several runs on the login node of a SLURM cluster, as run_script.sh does for one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.launch.python_path import LAUNCHERS
from tfagents_system.launch.vars_file import read_vars_file

_ALLOW = "SAC_ALLOW_LOGIN"


def refuse_login_node(vars_file: Path, remedy: str) -> None:
    """Refuses unless the vars file, or the environment, allows it.

    Args:
      remedy: What to do instead.

    Raises:
      UserError: This is a login node.
    """
    environ = read_vars_file(vars_file)
    command = ["bash", "-c", 'source "$0" && is_login_node', str(LAUNCHERS / "login_node.sh")]
    if environ.get(_ALLOW) == "1" or subprocess.run(command, env=environ, check=False).returncode:
        return
    raise UserError(
        f"this machine submits to a SLURM cluster, and this is no job: {remedy}, or set {_ALLOW}=1 to train right here"
    )
