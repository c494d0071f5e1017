"""The user's vars file, read as run_script.sh does it, and where programs find their modules.

Needs no package: cluster/submit.py runs in any Python 3.11.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tfagents_system.errors import UserError

LAUNCHERS = Path(__file__).resolve().parent  # Of run_script.sh and the other shell scripts.
ROOT = LAUNCHERS.parents[1]
_ALLOW_LOGIN = "SAC_ALLOW_LOGIN"
# The file's output is no variable, and the folder that it changes to is not the run's.
_SCRIPT = 'tfagents_pwd=$PWD; set -ae +u; source "$1" >&2; cd "$tfagents_pwd"; env -0'


def folders_of_python_path(environ: Mapping[str, str]) -> list[str]:
    """The folders that PYTHONPATH names; an empty entry, which Python takes for the current folder, is left out."""
    return [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def run_python_path(environ: Mapping[str, str]) -> str:
    """PYTHONPATH of a run's programs: the repository first, then its existing entries, each once."""
    return os.pathsep.join(dict.fromkeys([str(ROOT), *folders_of_python_path(environ)]))


def read_vars_file(path: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment after the vars file was sourced, as run_script.sh does it.

    Raises:
      UserError: The file is missing or fails.
    """
    if not path.is_file():
        remedy = in_it if (in_it := path / "vars.sh").is_file() else "the path of a file such as training_variables.sh"
        raise UserError(f"vars file {path} is missing: give {remedy}")
    if (text := path.read_bytes()).startswith(b"\xef\xbb\xbf") or b"\r\n" in text:
        raise UserError(
            f"vars file {path} was written by an editor of Windows, with carriage returns or a byte order mark: "
            f"sed -i 's/^\\xef\\xbb\\xbf//; s/\\r$//' '{path}' removes them"
        )
    command = ["env", "LC_ALL=C", "bash", "-O", "extglob", "-n", str(path)]
    syntax = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False)
    if syntax.returncode:
        raise UserError(f"vars file {syntax.stderr.splitlines()[0]}: correct this line, or one above it")
    command = ["bash", "-c", _SCRIPT, "vars", str(path.resolve())]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=dict(environ), check=False)
    if done.returncode or not done.stdout:  # No output: it has called `exit`.
        raise UserError(f"vars file {path} fails: see above (exit says nothing, = has no spaces), and correct it")
    entries = done.stdout.decode(errors="surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def refuse_login_node(vars_file: Path, remedy: str) -> None:
    """Raises a UserError with this remedy on a login node, unless the vars file, or the environment, allows it."""
    environ = read_vars_file(vars_file)
    command = ["bash", "-c", 'source "$0" && is_login_node', str(LAUNCHERS / "launcher.sh")]
    if environ.get(_ALLOW_LOGIN) == "1" or subprocess.run(command, env=environ, check=False).returncode:
        return
    raise UserError(
        f"this machine submits to a SLURM cluster, and this is no job: {remedy}, or set {_ALLOW_LOGIN}=1 to train here"
    )
