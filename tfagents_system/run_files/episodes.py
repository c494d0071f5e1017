"""The best episodes of a run, recorded step by step.

episodes/*.npz      an array for each list, under its name, and `about`: all else, as JSON
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.errors import UserError

SUFFIX = ".npz"
ACTIONS, WAS_GREEDY, REWARDS, Q_VALUES = "actions", "action_was_greedy", "rewards", "q_values"
_ABOUT = "about"


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
    """Reads a file; `setting` is the flag with its path.

    Raises:
      UserError: It is no recorded episode.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            lists = {name: arrays[name] for name in arrays.files if name != _ABOUT}
            episode = RecordedEpisode(lists=lists, **json.loads(str(arrays[_ABOUT])))
        if any(values.ndim < 1 or len(values) != len(episode) for values in lists.values()):
            raise ValueError("its lists have different lengths")
        return episode
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{setting}={path} is no recorded episode ({error}): give a file of episodes/ in a run directory, which "
            "keep_best_episodes writes"
        ) from None


def action_names(paths: list[tuple[Any, ...]]) -> list[str]:
    """The names of the lists of a nest of actions, whose leaves have these paths."""
    return ["/".join([ACTIONS, *map(str, path)]) for path in paths]
