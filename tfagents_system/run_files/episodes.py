"""Episodes of a run: the best ones, recorded step by step, and the journals from which workers repeat interrupted ones.

    episodes/*.npz                  an array for each list, under its name, and `about`: all else, as JSON
    journals/worker_0.journal       of each iteration: length and CRC-32 of what follows, and a `Cut` in MessagePack

Only deterministic runs with iterations of steps have journals. An iteration is written there before the replay server
gets the last of its steps, so the ring never holds one that the journal lacks. What a killed process has left half
written is cut off. The journal reaches back to the oldest checkpoint that may be resumed from, and to the beginnings of
the episodes that were under way in it.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.machine.files import replacing, sync
from tfagents_system.run_files import kept_checkpoints

SUFFIX = ".npz"
ACTIONS, WAS_GREEDY, REWARDS, Q_VALUES = "actions", "action_was_greedy", "rewards", "q_values"
_ABOUT = "about"
_HEAD = struct.Struct("<II")
_FEWEST = 256  # Iterations in a journal before the oldest are looked at.


@dataclasses.dataclass(frozen=True)
class RecordedEpisode:
    """One whole episode of T steps.

    Attributes:
      lists: By name, `[T, ...]` each: `actions` (the agent's, in [-1, 1] or numbers of actions; of a nest
        `actions/<path>`), `action_was_greedy` (bool; False where it is not known), `rewards` (float32), `q_values`
        (`[T, num_actions]` float32, where the policy knows them), and each `record/<name>` of the environment's info.
      episode_return: Undiscounted sum of rewards.
      success: As the environment reports it; None where it does not.
      worker_id: Who collected or evaluated it.
      number: Of the worker's episodes, from 0.
      env_id: `id` of its environment, as hooks get it.
      checkpoint: The policy, as its checkpoint is called if it was saved.
      train_step: Updates that this policy had.
      iteration: In which the episode ended.
      seed: The episode follows from it and the actions; None where it was not seeded.
      curriculum: The environment's parameters, by name.
    """

    lists: Mapping[str, np.ndarray]
    episode_return: float
    success: bool | None
    worker_id: int
    number: int
    env_id: int
    checkpoint: str
    train_step: int
    iteration: int
    seed: int | None
    curriculum: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.lists[REWARDS])

    def to_bytes(self) -> bytes:
        """The file's content."""
        about = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "lists"}
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {**self.lists, _ABOUT: np.array(json.dumps(about))}
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()


def load_episode(path: Path, setting: str) -> RecordedEpisode:
    """Reads a file.

    Args:
      path: The file.
      setting: The flag with the path; named in errors.

    Raises:
      UserError: It is not one.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{setting}={path} is no recorded episode ({error}): give a file of episodes/ in a run directory, which "
            "keep_best_episodes writes"
        ) from None


def _read(file: BinaryIO) -> RecordedEpisode:
    with np.load(file, allow_pickle=False) as arrays:
        lists = {name: arrays[name] for name in arrays.files if name != _ABOUT}
        episode = RecordedEpisode(lists=lists, **json.loads(str(arrays[_ABOUT])))
    if any(values.ndim < 1 or len(values) != len(episode) for values in lists.values()):
        raise ValueError("its lists have different lengths")
    return episode


def action_names(paths: list[tuple[Any, ...]]) -> list[str]:
    """The names of the lists of a nest of actions, whose leaves have these paths."""
    return ["/".join([ACTIONS, *map(str, path)]) for path in paths]


class EpisodeUnderWay(msgspec.Struct, frozen=True, array_like=True):
    """An episode that continues in the next iteration.

    Attributes:
      env: The worker's environment that it is in.
      number: Of the episode, among all of the worker's.
      begun: Iteration that it began in.
      steps: Taken in this iteration.
      actions: Their actions, `[steps, ...]` in the dtype of the ring's column.
      checksum: CRC-32 of all that the environment has returned since the episode began.
      memory: The policy's, float32 arrays.
      explored: Which of the actions explored, a byte each; empty where none did.
    """

    env: int
    number: int
    begun: int
    steps: int
    actions: bytes
    checksum: int
    memory: list[bytes]
    explored: bytes = b""


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """The end of an iteration of steps.

    Attributes:
      iteration: The iteration.
      next_number: Of the next episode to begin.
      turn: The environment that steps first where not all may.
      episodes: In the order in which they began.
    """

    iteration: int
    next_number: int
    turn: int
    episodes: list[EpisodeUnderWay]


class JournalError(Exception):
    """The journal lacks what is asked for."""


class EpisodeJournal:
    """One worker's journal.

    Args:
      path: The file; it need not exist.
      checkpoints: The run's folder of checkpoints.
    """

    def __init__(self, path: Path, checkpoints: Path) -> None:
        self._path = path
        self._checkpoints = checkpoints
        self._prune_at = _FEWEST
        self._find()

    def _find(self) -> None:
        found = self._read()
        self._iterations = [cut.iteration for cut, _ in found]
        self._offsets = [0, *(end for _, end in found)]  # Of the iterations; at last that of the end.

    def append(self, cut: Cut) -> None:
        """Adds an iteration, in place of those that are not earlier. An error is logged: a run can do without."""
        while self._iterations and self._iterations[-1] >= cut.iteration:
            self._iterations.pop()
            self._offsets.pop()
        if len(self._iterations) >= self._prune_at:
            self._prune()
        record = _framed(cut)
        try:
            self._path.parent.mkdir(exist_ok=True)  # No parents: a run directory that was moved away may be put back.
            with self._path.open("ab") as file:
                file.truncate(self._offsets[-1])
                file.write(record)
        except OSError as error:
            logging.error("%s can't be written (%s): a restart may change the weights", self._path, error.strerror)
            return
        self._iterations.append(cut.iteration)
        self._offsets.append(self._offsets[-1] + len(record))

    def at(self, iteration: int) -> tuple[Cut, list[list[tuple[int, EpisodeUnderWay]]]]:
        """The end of an iteration.

        Returns:
          It, and for each of its episodes what was written of it in each iteration since it began, oldest first.

        Raises:
          JournalError: It is not there.
        """
        cuts = {cut.iteration: cut for cut, _ in self._read()}
        cut = cuts.get(iteration)
        if cut is None:
            raise JournalError(f"{self._path} has nothing of iteration {iteration}")
        parts = []
        for episode in cut.episodes:
            found = [
                (i, part)
                for i in range(episode.begun, iteration + 1)
                for part in (cuts[i].episodes if i in cuts else ())
                if part.number == episode.number
            ]
            if len(found) != iteration + 1 - episode.begun:
                raise JournalError(f"{self._path} has not all of the episode that began in iteration {episode.begun}")
            parts.append(found)
        return cut, parts

    def _prune(self) -> None:
        """Forgets what no checkpoint needs any more. A checkpoint's ring has every iteration before its own."""
        oldest = kept_checkpoints.oldest_iteration(self._checkpoints)
        kept = [cut for cut, _ in self._read() if cut.iteration <= self._iterations[-1]]
        at = next((cut for cut in kept if oldest is not None and cut.iteration == oldest - 1), None)
        if at is not None:
            first = min([at.iteration, *(episode.begun for episode in at.episodes)])
            kept = [cut for cut in kept if cut.iteration >= first]
            try:
                with replacing(self._path) as file:
                    for cut in kept:
                        file.write(_framed(cut))
                    file.flush()
                    os.fsync(file.fileno())  # A power cut leaves one of the two files whole.
            except OSError as error:
                logging.error("%s can't be made shorter: %s", self._path, error.strerror)
            else:
                self._find()
        self._prune_at = max(_FEWEST, 2 * len(self._iterations))

    def _read(self) -> list[tuple[Cut, int]]:
        """What is whole, each with the offset of its end."""
        try:
            content = self._path.read_bytes()
        except OSError:
            return []
        cuts: list[tuple[Cut, int]] = []
        offset = 0
        while offset + _HEAD.size <= len(content):
            length, crc = _HEAD.unpack_from(content, offset)
            offset += _HEAD.size + length
            record = content[offset - length : offset]
            if len(record) < length or zlib.crc32(record) != crc:
                break
            try:
                cuts.append((msgspec.msgpack.decode(record, type=Cut), offset))
            except msgspec.DecodeError:
                break
        return cuts


def make_durable(folder: Path) -> None:
    """All journals there survive a power cut as they are now.

    Raises:
      OSError: They can't be written.
    """
    if folder.is_dir():
        for path in folder.glob("*.journal"):
            sync(path)
        sync(folder)


def _framed(cut: Cut) -> bytes:
    record = msgspec.msgpack.encode(cut)
    return _HEAD.pack(len(record), zlib.crc32(record)) + record
