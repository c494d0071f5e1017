"""Episodes of a run: the best ones, recorded step by step, and the journals from which workers repeat interrupted ones.

    episodes/*.npz                  an array for each list, under its name, and `about`: all else, as JSON
    journals/worker_0.journal       of each iteration: length and CRC-32 of what follows, and a `Cut` in MessagePack

Only deterministic runs with iterations of steps have journals. An iteration is written there before the replay server
gets the last of its steps, so the ring never holds one that the journal lacks. What a killed process has left half
written is cut off.
"""

from __future__ import annotations

import dataclasses
import io
import json
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

SUFFIX = ".npz"
ACTIONS, WAS_GREEDY, REWARDS, Q_VALUES = "actions", "action_was_greedy", "rewards", "q_values"
_ABOUT = "about"
_HEAD = struct.Struct("<II")


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
      number: Of the episode, among all of the worker's.
      begun: Iteration that it began in.
      steps: Taken in this iteration.
      actions: Their actions, `[steps, ...]` in the dtype of the ring's column.
      checksum: CRC-32 of all that the environment has returned since the episode began.
      memory: The policy's, float32 arrays.
      explored: Which of the actions explored, a byte each; empty where none did.
    """

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
      episode: That goes on; None: none does.
    """

    iteration: int
    next_number: int
    episode: EpisodeUnderWay | None


class JournalError(Exception):
    """The journal lacks what is asked for."""


class EpisodeJournal:
    """One worker's journal.

    Args:
      path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        cuts = self._read()
        self._iterations = [cut.iteration for cut, _ in cuts]
        self._offsets = [0, *(end for _, end in cuts)]  # Of the iterations; at last that of the end.

    def append(self, cut: Cut) -> None:
        """Adds an iteration, in place of those that are not earlier. An error is logged: a run can do without."""
        while self._iterations and self._iterations[-1] >= cut.iteration:
            self._iterations.pop()
            self._offsets.pop()
        content = msgspec.msgpack.encode(cut)
        record = _HEAD.pack(len(content), zlib.crc32(content)) + content
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

    def at(self, iteration: int) -> tuple[Cut, list[tuple[int, EpisodeUnderWay]]]:
        """The end of an iteration.

        Returns:
          It, and what was written of its episode in each iteration since that began, oldest first.

        Raises:
          JournalError: It is not there.
        """
        cuts = {cut.iteration: cut for cut, _ in self._read()}
        if iteration not in cuts:
            raise JournalError(f"{self._path} has nothing of iteration {iteration}")
        cut = cuts[iteration]
        if cut.episode is None:
            return cut, []
        first, number = cut.episode.begun, cut.episode.number
        between = [(past, cuts[past].episode) for past in range(first, iteration + 1) if past in cuts]
        parts = [(past, part) for past, part in between if part is not None and part.number == number]
        if len(parts) != iteration + 1 - first:
            raise JournalError(f"{self._path} has not all of the episode that began in iteration {first}")
        return cut, parts

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
            cuts.append((msgspec.msgpack.decode(record, type=Cut), offset))
        return cuts
