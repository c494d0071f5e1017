"""The checkpoints of a run: folders that are complete or absent, each of one moment, each file with its checksum.

    checkpoints/checkpoint_0000012000/          complete: it got its name when all of it was on disk
        agent.index, agent.data-...             agent, optimizers and counters (trainer/trainer_checkpoints.py)
        replay.bin                              which rows of the ring belong to it (replay/ring.py)
        priorities.bin                          with priorities: how likely each of them is (replay/priorities.py)
        manifest.json                           train step, iteration, the agent's signature, size and SHA-256 of files
    checkpoints/checkpoint_0000012400.partial/  being written, or left by a process that was killed meanwhile

Where the trainer has a run directory of its own, that of the replay server has checkpoints of the same names without an
agent.

Trainer and replay server both look here for what to resume from. This module imports neither TensorFlow nor Reverb.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from absl import logging

from tfagents_system.machine.files import read_json, sync, sync_all, write_json
from tfagents_system.run_files.run_lock import may_write
from tfagents_system.run_files.run_paths import RunPaths

KEEP = 2
REMEDY_FOR_ANOTHER_AGENT = (
    "algorithm, networks, normalisation, observations and actions stay as the run began. Set them back, or choose "
    "another SAC_EXP_NAME"
)
# Of a file that is not there as its manifest says; other errors are those of a disk or a file server.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
REWARD_SCALE = "reward_scale"  # In a signature: what rewards are divided by, if they are.
_SHOWN = 3  # Differences between two agents: there may be dozens.
AGENT = "agent"
REPLAY = "replay.bin"
PRIORITIES = "priorities.bin"
MANIFEST = "manifest.json"
_AGENT_ELSEWHERE = "agent_is_elsewhere"
_PARTIAL = ".partial"
_NAME = re.compile(r"checkpoint_(\d{10,})(?:_(\d+))?")


# Class of an agent, and how many variables it has of each shape: {"class": "Sac", "256x256": 6, ...}.
AgentSignature = Mapping[str, str | int]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
      folder: Where it is.
      train_step: Updates done when it was taken.
      iteration: Iterations completed.
      has_replay: Whether it records which experience belongs to it.
      signature: Of its agent, see `why_not_of`.
      has_agent: Whether the agent is in it, and not in the run directory of a trainer elsewhere.
    """

    folder: Path
    train_step: int
    iteration: int
    has_replay: bool
    signature: AgentSignature | None = None
    has_agent: bool = True

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def agent(self) -> Path:
        """Prefix of TensorFlow's files."""
        return self.folder / AGENT

    @property
    def replay(self) -> Path:
        return self.folder / REPLAY

    @property
    def priorities(self) -> Path:
        """There only if the run had priorities."""
        return self.folder / PRIORITIES


class DamagedCheckpointError(Exception):
    """A checkpoint is not what was written."""


def begin(checkpoints: Path, train_step: int) -> Path:
    """Makes the folder that a new checkpoint is written into; `finish` completes it.

    A second checkpoint of the same train step gets a number at its end, so that neither replaces the other.
    """
    name = f"checkpoint_{train_step:010d}"
    taken = [match for folder in _folders(checkpoints) if (match := _NAME.fullmatch(folder.name))]
    serials = [int(match[2] or 1) for match in taken if int(match[1]) == train_step]
    if serials:
        name += f"_{max(serials) + 1}"
    partial = checkpoints / f"{name}{_PARTIAL}"
    shutil.rmtree(partial, ignore_errors=True)
    checkpoints.mkdir(exist_ok=True)  # No parents: a run directory that was moved away may be put back.
    partial.mkdir()
    return partial


def finished_name(partial: Path) -> str:
    """The name that a folder made by `begin` gets."""
    return partial.name.removesuffix(_PARTIAL)


def finish(
    partial: Path,
    train_step: int,
    iteration: int,
    further: Mapping[str, Any],
    signature: AgentSignature | None = None,
    *,
    has_agent: bool = True,
) -> Checkpoint:
    """Completes a checkpoint from `begin` with all files in it: after this it survives a power cut.

    Args:
      further: For people who read the manifest.

    Raises:
      OSError: It can't be written; the ones before it are as they were.
    """
    files = {path.name: _describe(path) for path in sorted(partial.iterdir()) if path.name != MANIFEST}
    where = {} if has_agent else {_AGENT_ELSEWHERE: True}
    manifest = {
        "train_step": train_step,
        "iteration": iteration,
        **further,
        **where,
        "agent": signature,
        "files": files,
    }
    write_json(partial / MANIFEST, manifest, indent=1, is_durable=False)  # All is synced at once.
    sync_all(partial)
    folder = partial.with_name(finished_name(partial))
    if not may_write(RunPaths(partial.parent.parent)):  # It would be the newest one of a run that continues elsewhere.
        raise OSError(errno.ESTALE, "another start of this run has taken its directory over")
    os.rename(partial, folder)
    sync(folder.parent)
    return Checkpoint(folder, train_step, iteration, REPLAY in files, signature, has_agent)


def read(folder: Path) -> Checkpoint:
    """Reads a checkpoint and checks every byte of it.

    Raises:
      DamagedCheckpointError: With what is wrong.
      OSError: It can't be read now, such as over a network: that says nothing about what is in it.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        for name, expected in files.items():
            # No way out of the folder, whatever a damaged manifest says.
            found = _describe(folder / Path(str(name)).name)
            if found != expected:
                raise DamagedCheckpointError(f"{name} has {found}, its manifest says {expected}")
        has_agent = not manifest.get(_AGENT_ELSEWHERE)
        if has_agent and f"{AGENT}.index" not in files:
            raise DamagedCheckpointError("it has no agent")
        train_step, iteration = int(manifest["train_step"]), int(manifest["iteration"])
        return Checkpoint(folder, train_step, iteration, REPLAY in files, manifest.get("agent"), has_agent)
    except OSError as error:
        if error.errno in _ABSENT:
            raise DamagedCheckpointError(f"{type(error).__name__}: {error}") from None
        raise OSError(error.errno, error.strerror, str(folder)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(f"{type(error).__name__}: {error}") from None


def newest_complete(checkpoints: Path, *, with_agent: bool = False) -> Checkpoint | None:
    """The newest checkpoint whose checksums are right; damaged ones are logged and skipped.

    With `with_agent` those whose agent is elsewhere are skipped, too.

    Raises:
      OSError: One can't be read now: an older one would not be the newest any more once it can.
    """
    for folder in reversed(_complete_folders(checkpoints)):
        try:
            checkpoint = read(folder)
            if checkpoint.has_agent or not with_agent:
                return checkpoint
        except DamagedCheckpointError as error:
            logging.error("checkpoint %s is damaged (%s): the one before it is used", folder, error)
    return None


def remember(record: Path, train_step: int) -> None:
    """Notes outside of the checkpoints' folder that there is one, for `why_lost`."""
    with contextlib.suppress(OSError):
        write_json(record, {"train_step": train_step})


def why_lost(checkpoints: Path, record: Path | None) -> str:
    """Why a run must not begin anew though it has no whole checkpoint; empty if it never had one after an update.

    Raises:
      OSError: One can't be read now.
    """
    steps = [train_step_of(folder.name) for folder in _complete_folders(checkpoints) if _is_damaged(folder)]
    recorded = (read_json(record) or {}).get("train_step") if record is not None else None
    most = max([*steps, recorded if isinstance(recorded, int) else 0], default=0)
    if most == 0:
        return ""
    what = f"all {len(steps)} in it are damaged" if steps else "there is none in it"
    return (
        f"the run has had a checkpoint after {most} updates in {checkpoints}, and {what}: put back one that is whole, "
        "or begin another run (SAC_EXP_NAME)"
    )


def _is_damaged(folder: Path) -> bool:
    try:
        read(folder)
    except DamagedCheckpointError:
        return True
    return False


def newest_train_step(checkpoints: Path) -> int:
    """Updates before the newest checkpoint, by its name; -1 without one."""
    folders = _complete_folders(checkpoints)
    return train_step_of(folders[-1].name) if folders else -1


def train_step_of(name: str) -> int:
    """The updates before a checkpoint, by its name.

    Raises:
      ValueError: It is no checkpoint's name.
    """
    if (match := _NAME.fullmatch(name)) is None:
        raise ValueError(f"{name!r} is no name of a checkpoint")
    return int(match[1])


def why_not_of(checkpoint: Checkpoint, signature: AgentSignature) -> str:
    """Why an agent can't continue from a checkpoint, in words; empty if nothing is known against it."""
    saved = checkpoint.signature
    if saved is None or saved == signature:
        return ""
    names = sorted(name for name in {*saved, *signature} if saved.get(name) != signature.get(name))
    pairs = [f"{_in_words(name)} {saved.get(name, 0)} and {signature.get(name, 0)}" for name in names[:_SHOWN]]
    return f"{checkpoint.folder} and TrainParams have different agents ({', '.join(pairs)}): {REMEDY_FOR_ANOTHER_AGENT}"


def why_not_to_go_on(paths: RunPaths, signature: AgentSignature) -> str:
    """Why a run can't continue with an agent from checkpoints that it has or had; empty if it can, or has had none."""
    try:
        newest = newest_complete(paths.trainer_checkpoints)
        return why_not_of(newest, signature) if newest is not None else why_lost(paths.trainer_checkpoints, paths.saved)
    except OSError as error:
        return (
            f"{error.filename} can't be read: {error.strerror}. Where that stays so, move this folder away: the "
            "checkpoint before it is used then"
        )


def _in_words(name: str) -> str:
    return name if name in ("class", REWARD_SCALE) else f"variables of shape {name}:"


def prune(checkpoints: Path, keep: int = KEEP, *, written: Path | None = None) -> None:
    """Deletes all but the newest `keep` good checkpoints, and what killed processes have left half written.

    The one that was just `written` stays, whatever the names of others say.
    """
    kept = 0 if written is None else 1
    for folder in reversed(_complete_folders(checkpoints)):
        if folder == written:
            continue
        if kept < keep:
            with contextlib.suppress(DamagedCheckpointError, OSError):
                read(folder)
                kept += 1
        else:
            shutil.rmtree(folder, ignore_errors=True)
    for folder in _folders(checkpoints):
        if folder.name.endswith(_PARTIAL):
            shutil.rmtree(folder, ignore_errors=True)


def delete_later(written: Path) -> None:
    """Deletes the checkpoints of later train steps than one that was just written: of a trainer that is lost."""
    for folder in _complete_folders(written.parent):
        if train_step_of(folder.name) > train_step_of(written.name):
            shutil.rmtree(folder, ignore_errors=True)


def _complete_folders(checkpoints: Path) -> list[Path]:
    """Oldest first."""
    named = [(match, folder) for folder in _folders(checkpoints) if (match := _NAME.fullmatch(folder.name))]
    return [folder for match, folder in sorted(named, key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 1)))]


def _folders(checkpoints: Path) -> Iterator[Path]:
    if checkpoints.is_dir():
        yield from (path for path in checkpoints.iterdir() if path.is_dir())


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}
