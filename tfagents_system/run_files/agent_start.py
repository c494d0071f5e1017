"""Another agent's values that a new run's agent begins with (SAC_AGENT_FROM), kept in the run directory.

    agent_from/
        start.json            where they are from, and which parts are taken
        agent.index, ...      the files of a trainer's checkpoint; or variables/ of a policy

The run has a copy: the other run may go on, or be deleted, before a killed trainer begins anew.
This module imports neither TensorFlow nor Reverb.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import shutil
from pathlib import Path
from typing import Literal

from tfagents_system.checks.spelling import is_meant
from tfagents_system.errors import UserError
from tfagents_system.run_files import run_checkpoints
from tfagents_system.run_files.best import read_best
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_checkpoints import DamagedCheckpointError
from tfagents_system.run_files.run_paths import RunPaths

Kind = Literal["checkpoint", "policy"]

_START = "start.json"
_VARIABLES = "variables"
_INDEX = f"{run_checkpoints.AGENT}.index"


@dataclasses.dataclass(frozen=True)
class AgentStart:
    """What a new agent begins with.

    Attributes:
      source: SAC_AGENT_FROM.
      kind: What `files` is: a trainer's `checkpoint`, or a `policy` with its variables.
      files: A folder.
      parts: SAC_AGENT_PARTS; empty: the usual ones.
    """

    source: str
    kind: Kind
    files: Path
    parts: tuple[str, ...] = ()

    @property
    def prefix(self) -> Path:
        """Of a checkpoint's files."""
        return self.files / run_checkpoints.AGENT

    def copy(self, folder: Path) -> None:
        """Copies all that is needed into a new folder.

        Raises:
          OSError: It can't be written, or what it was found in is not there any more.
        """
        files = self._own_files()
        if not files:
            raise FileNotFoundError(errno.ENOENT, "has nothing to begin with any more", str(self.files))
        folder.mkdir()
        for path in files:
            target = folder / path.relative_to(self.files)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
        told = {"source": self.source, "kind": self.kind, "parts": list(self.parts)}
        (folder / _START).write_text(json.dumps(told, indent=1) + "\n")

    def digest(self) -> str:
        """Differs where source, parts or contents do."""
        digest = hashlib.sha256(json.dumps([self.source, self.kind, self.parts]).encode())
        for path in self._own_files():
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()

    def _own_files(self) -> list[Path]:
        pattern = f"{run_checkpoints.AGENT}.*" if self.kind == "checkpoint" else f"{_VARIABLES}/{_VARIABLES}.*"
        return sorted(self.files.glob(pattern))


def start_of_run(paths: RunPaths) -> AgentStart | None:
    """What the run's agent begins with; None: random weights."""
    return _kept_in(paths.agent_from)


def _kept_in(folder: Path) -> AgentStart | None:
    """What `copy` has written there; None where it has not: a user's policy may have a start.json of its own."""
    match read_json(folder / _START):
        case {"source": str(source), "kind": "checkpoint" | "policy" as kind, "parts": [*parts]}:
            return AgentStart(source, kind, folder, tuple(parts))
    return None


def find_start(source: str, parts: tuple[str, ...] = ()) -> AgentStart:
    """What SAC_AGENT_FROM means: RUN, RUN@CHECKPOINT, a policy's folder, or what another run began with.

    Args:
      source: With an absolute path. CHECKPOINT is one of the run's checkpoints, or one of its policies: its name,
        `best` or `latest`.
      parts: SAC_AGENT_PARTS.

    Raises:
      UserError: It is none of these, or damaged.
    """
    path, name = split(source)
    if name is None and path.is_file():
        raise UserError(f"{path} is a file, exported policies can't be read back: give a run directory, or a policy")
    if not path.is_dir():
        raise UserError(f"{path} does not exist: give a run directory, or a policy")
    if name is None and (kept := _kept_in(path)) is not None:
        return dataclasses.replace(kept, source=source, parts=parts)
    if name is None:
        return AgentStart(source, *_of_folder(path), parts)
    return AgentStart(source, *_of_checkpoint(RunPaths(path), name), parts)


def split(source: str) -> tuple[Path, str | None]:
    """RUN and CHECKPOINT of RUN@CHECKPOINT."""
    path, at, name = source.rpartition("@")
    if at and "/" not in name and not Path(source).exists():
        return Path(path), name
    return Path(source), None


def _of_folder(folder: Path) -> tuple[Kind, Path]:
    """A run, a checkpoint, or a policy."""
    if (folder / _INDEX).is_file():
        return "checkpoint", _checked(folder)
    if (folder / _VARIABLES / f"{_VARIABLES}.index").is_file():
        return "policy", folder
    try:
        newest = run_checkpoints.newest_complete(RunPaths(folder).trainer_checkpoints, with_agent=True)
    except OSError as error:
        raise UserError(f"{error.filename} can't be read: {error.strerror}") from None
    if newest is None:
        raise UserError(f"{folder} has no checkpoint: give a run that has one, a policy checkpoint or a SavedModel")
    return "checkpoint", newest.folder


def _of_checkpoint(paths: RunPaths, name: str) -> tuple[Kind, Path]:
    if name == "best":
        name = str((read_best(paths) or {}).get("checkpoint", name))
    policies = {path.name: path for path in sorted(paths.policy_checkpoints.glob("policy_checkpoint_*"))}
    checkpoints = {path.name: path for path in sorted(paths.trainer_checkpoints.glob("checkpoint_*"))}
    checkpoints = {each: path for each, path in checkpoints.items() if (path / _INDEX).is_file()}
    if name == "latest" and policies:
        name = list(policies)[-1]
    if name in checkpoints:
        return "checkpoint", _checked(checkpoints[name])
    if name in policies:
        return "policy", policies[name]
    best = ["best"] if read_best(paths) else []
    found = [*best, *(["latest"] if policies else []), *checkpoints, *policies]
    there_are = f"there are {', '.join(found)}" if found else "it has none yet"
    raise UserError(f"{paths.exp_dir} has no checkpoint {name}{is_meant(name, found)}: {there_are}")


def _checked(folder: Path) -> Path:
    """Raises UserError if the checkpoint is damaged."""
    try:
        return run_checkpoints.read(folder).folder
    except DamagedCheckpointError as error:
        raise UserError(f"{folder} is damaged ({error}): give another checkpoint") from None
    except OSError as error:
        raise UserError(f"{folder} can't be read: {error.strerror}") from None
