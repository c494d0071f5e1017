"""Records episodes step by step, where an observer or `keep_best_episodes` asks for it.

An observer asks by a method `take_episode(episode)`, which is called with a RecordedEpisode after each episode.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tree
from absl import logging

from tfagents_system.envs.gym_driver import RECORD_PREFIX, recorded
from tfagents_system.envs.training_environment import MAX_FLOAT32
from tfagents_system.errors import shown
from tfagents_system.policies.names import checkpoint_name
from tfagents_system.run_files.episodes import Q_VALUES, REWARDS, WAS_GREEDY, RecordedEpisode, action_names
from tfagents_system.transport.episode_reports import MOST_KEPT_BYTES, Episode, KeptEpisode
from tfagents_system.worker.actors import Actor

TakeEpisode = Callable[[RecordedEpisode], None]
Observer = Callable[[Any], None]  # Of a Trajectory.


def takers_of(observers: Sequence[Any]) -> list[TakeEpisode]:
    """The methods of those observers that ask for whole episodes."""
    return [observer.take_episode for observer in observers if callable(getattr(observer, "take_episode", None))]


def callables(observers: Sequence[Any]) -> list[Observer]:
    """Those that are called with each step: one with `take_episode` may ask for episodes alone."""
    return [observer for observer in observers if callable(observer)]


def observed(observers: Sequence[Any]) -> dict[str, float]:
    """`result()` of those observers that have a name and one (PyMetrics)."""
    named = [observer for observer in observers if hasattr(observer, "name") and hasattr(observer, "result")]
    results = {str(observer.name): float(observer.result()) for observer in named}
    return {name: value for name, value in results.items() if abs(value) <= MAX_FLOAT32}


@dataclasses.dataclass(eq=False)
class EpisodeRecorder:
    """Records a worker's episodes.

    Attributes:
      worker_id: The worker.
      env_id: From the number of an environment or lane to its environment's `id`, as hooks get it.
      takers: Take each episode.
      train_step: Updates that the policy of the newest step had.
      actor: Chooses the actions; to be set, like those that follow, before each call of a rollout.
      iteration: In which episodes end.
      curriculum, seed: Of episodes that begin, as of RecordedEpisode.
    """

    worker_id: int
    env_id: Callable[[int], int]
    takers: Sequence[TakeEpisode]
    train_step: Callable[[], int]
    actor: Actor = dataclasses.field(init=False)
    iteration: int = 0
    curriculum: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        self.number = 0  # Of the next episode that ends.
        self._left_out = set[str]()

    def begin(self, env: int) -> EpisodeRecord:
        """An episode begins in an environment, or in a lane of a vector environment."""
        return EpisodeRecord(self, env)

    def leave_out(self, name: str, why: str) -> None:
        """Says once that a value of the environment's info can't be recorded."""
        if name not in self._left_out:
            self._left_out.add(name)
            logging.warning("%s of the environment's info is not recorded: %s", name, why)


class EpisodeRecord:
    """The lists of one episode under way.

    Args:
      recorder: Of the worker.
      env: Its environment.
    """

    def __init__(self, recorder: EpisodeRecorder, env: int) -> None:
        self._recorder = recorder
        self._env = env
        self._seed, self._curriculum = recorder.seed, recorder.curriculum
        self._actions: list[Any] = []
        self._rewards: list[Any] = []
        self._was_greedy: list[bool] = []
        self._by_step: dict[str, dict[int, Any]] = {}  # What some steps have, by name.

    def add(self, action: Any, reward: Any, info: Mapping[str, Any]) -> None:
        """A step, right after its action was chosen: the actor is asked about it."""
        step, actor = len(self._rewards), self._recorder.actor
        self._actions.append(action)
        self._rewards.append(reward)
        self._was_greedy.append(bool(actor.was_greedy[self._env]))
        if actor.q_values is not None:
            self._by_step.setdefault(Q_VALUES, {})[step] = actor.q_values[self._env].copy()
        for key in info:
            if isinstance(key, str) and key.startswith(RECORD_PREFIX):
                if (value := recorded(info[key])) is not None:
                    self._by_step.setdefault(key, {})[step] = value
                    continue
                found = shown(info[key])
                why = f"in a step it is {found}, neither numbers nor texts; such steps are left out (NaN)"
                self._recorder.leave_out(key, why)

    def end(self, episode: Episode) -> None:
        """The episode has ended: those who take episodes get it."""
        recorder = self._recorder
        train_step = recorder.train_step()
        whole = RecordedEpisode(
            lists=self._lists(),
            episode_return=episode.episode_return,
            success=episode.success,
            worker_id=recorder.worker_id,
            number=recorder.number,
            env_id=recorder.env_id(self._env),
            checkpoint=checkpoint_name(train_step),
            train_step=train_step,
            iteration=recorder.iteration,
            seed=self._seed,
            curriculum=self._curriculum,
        )
        recorder.number += 1
        for take in recorder.takers:
            take(whole)

    def _lists(self) -> dict[str, np.ndarray]:
        """Of all steps, as of RecordedEpisode."""
        names = action_names([path for path, _ in tree.flatten_with_path(self._actions[0])])
        leaves = zip(*map(tree.flatten, self._actions), strict=True)
        lists = {name: np.array(values) for name, values in zip(names, leaves, strict=True)}
        lists[WAS_GREEDY] = np.array(self._was_greedy, np.bool_)
        lists[REWARDS] = np.array(self._rewards, np.float32)
        for name, values in self._by_step.items():
            try:
                lists[name] = _column(values, len(self._rewards))
            except ValueError as error:
                self._recorder.leave_out(name, str(error))
        return lists


def _column(values: Mapping[int, Any], steps: int) -> np.ndarray:
    """Values by step as a list; NaN, or an empty text, in steps without one.

    Raises:
      ValueError: They are not of one form.
    """
    column = np.array(list(values.values()))
    if len(values) == steps:
        return column
    dtype = column.dtype if column.dtype.kind in "fU" else np.dtype(np.float64)
    padded: np.ndarray = np.empty((steps, *column.shape[1:]), dtype)
    padded[:] = "" if dtype.kind == "U" else np.nan
    padded[list(values)] = column
    return padded


class BestOfWorker:
    """Those of a worker's episodes that may be among the best of the run, whose trainer keeps these.

    Args:
      count: `keep_best_episodes`.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._returns: list[float] = []  # The highest so far, as a heap.
        self._new: list[KeptEpisode] = []
        self._too_large_bytes = math.inf  # Of the lists of the smallest episode whose file was too large.

    def take(self, episode: RecordedEpisode) -> None:
        """An episode has ended. Its file is made at once: later, steps of the next one may be waiting."""
        size_bytes = sum(values.nbytes for values in episode.lists.values())
        is_better = len(self._returns) < self._count or episode.episode_return > self._returns[0]
        if not is_better or size_bytes >= self._too_large_bytes:
            return
        kept = KeptEpisode(episode.episode_return, episode.train_step, episode.number, episode.to_bytes())
        if len(kept.file) > MOST_KEPT_BYTES:
            self._too_large_bytes = size_bytes
            logging.warning(
                "an episode of return %g is not kept, nor are others as large: its file has %d bytes, at most %d may "
                "be. Record less (%s<name> in the environment's info), or shorter episodes",
                *(kept.episode_return, len(kept.file), MOST_KEPT_BYTES, RECORD_PREFIX),
            )
            return
        heapq.heappush(self._returns, kept.episode_return)
        if len(self._returns) > self._count:
            heapq.heappop(self._returns)
        self._new.append(kept)

    def pop(self) -> list[KeptEpisode]:
        """Those since the last call, as a report has them."""
        best = sorted(self._new, key=lambda episode: -episode.episode_return)[: self._count]
        self._new = []
        return best
