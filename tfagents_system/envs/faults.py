"""Exceptions of a user's environment, reported with the line that raised them.

Runs under SAC_ENV_PYTHON as well: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from importlib.machinery import PathFinder
from pathlib import Path

# Set by `--check`, to 1, or to `COPY:FOLDER` of the user's files; an environment's own process inherits it.
SHOW_TRACES = "TFAGENTS_SHOW_TRACES"
_IS_SHOWN = "_tfagents_trace_is_shown"
_OWN_DIR = str(Path(__file__).resolve().parents[1])
_LOCK = os.path.join(os.path.dirname(_OWN_DIR), "requirements.lock")  # None where the toolkit was installed with pip.
# Packages of our extras and of simulators that we name. Any other may be a stranger's.
_PACKAGES = re.compile("ale_py|envpool|gymnasium_robotics|minari|mlflow|mujoco|onnxruntime|optuna|pybullet|wandb")
_INSTALLED = re.compile(r"[/\\]lib(64)?[/\\]python3(\.\d+)?[/\\]|site-packages")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in ')


class EnvironmentFault(Exception):
    """The environment raised, or returned something that its spaces do not allow.

    Args:
      worker_id: The worker that runs it.
      step: Steps taken in the episode, including the failing one; 0 is the reset.
      episode: Episodes begun by this environment since it was built, from 1.
      error: What was raised.
      name: Which environment of the worker.
      where: What failed, if it was neither step nor reset.
    """

    counts = False  # The episode that it ended counts: a policy may bring about as many of these as it likes.

    def __init__(
        self,
        worker_id: int,
        step: int,
        episode: int,
        error: BaseException,
        name: str = "the environment",
        where: str = "",
    ) -> None:
        self.worker_id, self.step, self.episode, self.name = worker_id, step, episode, name
        where = where or (f"step {step} of episode {episode}" if step else f"the reset before episode {episode}")
        super().__init__(f"worker {worker_id}: {name} failed in {where}: {describe_error(error)}")


class EnvironmentProcessError(Exception):
    """A failure in an environment's own process (SAC_ENV_PYTHON), described there.

    Args:
      description: As `describe_error` gives it.
    """


class EnvironmentDiedError(EnvironmentProcessError):
    """That process has died, or was killed because it hung."""


def cause_of(error: BaseException) -> BaseException:
    """What the environment itself raised."""
    return (error.__cause__ or error) if isinstance(error, EnvironmentFault) else error


def describe_error(error: BaseException) -> str:
    """`ValueError: text (my_env.py, line 12; raised in simulator/core.py, line 88)`.

    Gives the last line that is neither ours nor of an installed package, and the innermost line if it differs. An
    error without a text is shown with the line of code that raised it, a missing module with where it was looked for or
    the command that installs it. `--check` also prints the user's lines of the traceback, where there are several.
    """
    if isinstance(error, EnvironmentProcessError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not _is_own(frame.filename)]
    users = [frame for frame in frames if is_users(frame.filename)]
    if SHOW_TRACES in os.environ and users[1:] and not _is_own(frames[-1].filename) and not hasattr(error, _IS_SHOWN):
        setattr(error, _IS_SHOWN, True)
        trace = "".join((*traceback.format_list(users), *traceback.format_exception_only(type(error), error)))
        # Files of the copy that is checked have the names of the user's.
        copy, _, folder = os.environ[SHOW_TRACES].partition(os.pathsep)
        trace = trace.replace(f"{copy}{os.sep}", f"{folder}{os.sep}") if folder else trace
        print(f"Traceback (most recent call last):\n{trace}", end="", file=sys.stderr)
    text = str(error) or (outside[-1].line if outside else "") or ""
    places = [f"{Path(frame.filename).name}, line {frame.lineno}" for frame in (users or outside)[-1:]]
    if users and outside[-1] is not users[-1]:
        places.append(f"raised in {'/'.join(Path(outside[-1].filename).parts[-2:])}, line {outside[-1].lineno}")
    described = f"{type(error).__name__}: {text}" + (f" ({'; '.join(places)})" if places else "")
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if not (isinstance(error, ModuleNotFoundError) and package and package not in sys.modules):
        return described
    if _PACKAGES.fullmatch(package):
        # Beside the trainer's packages: newer ones of what they share would break TensorFlow.
        lock = f"-c {_LOCK} " if PathFinder.find_spec("tf_agents") and os.path.exists(_LOCK) else ""
        return f"{described}; `{pip_install()} {lock}{package}` installs it"
    folders = [folder for folder in dict.fromkeys(sys.path) if os.path.isdir(folder) and is_users(f"{folder}/")]
    return f"{described}, which is neither installed nor in {' or '.join(folders[:3])}"  # PYTHONPATH may be long.


def pip_install() -> str:
    """The command that installs packages into this Python."""
    has_pip = PathFinder.find_spec("pip") is not None
    return f"{sys.executable} -m pip install" if has_pip else f"uv pip install --python {sys.executable}"


def line_of_trace(trace: str, through: str) -> str:
    """` (my_env.py, line 12)`: a thread's latest line that is neither ours nor of an installed package.

    Args:
      trace: Output of Python's faulthandler, for one or several threads.
      through: One of our files, which the thread has on its stack.
    """
    for thread in trace.split("\n\n"):
        frames = [match for line in thread.splitlines() if (match := _FRAME.match(line))]
        if any(Path(frame["file"]).name == through for frame in frames):
            outside = [frame for frame in frames if not _is_own(frame["file"])]
            users = [frame for frame in frames if is_users(frame["file"])]
            for frame in [*users, *outside][:1]:
                return f" ({Path(frame['file']).name}, line {frame['line']})"
    return ""


def _is_own(filename: str) -> bool:
    """Of the toolkit, its examples aside; or of Python's import machinery."""
    is_example = filename.startswith((os.path.join(_OWN_DIR, "examples", ""), os.path.join(_OWN_DIR, "minitaur_")))
    return (filename.startswith(_OWN_DIR) and not is_example) or "<frozen " in filename or "/importlib/" in filename


def is_users(filename: str) -> bool:
    """Neither of the toolkit nor of an installed package."""
    return not (_is_own(filename) or _INSTALLED.search(filename))
