"""Records episodes step by step, where an observer or `keep_best_episodes` asks for it.

An observer asks by a method `take_episode(episode)`, which is called with a RecordedEpisode after each episode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tree
from absl import logging

from tfagents_system.envs.info_keys import RECORD_PREFIX, recorded
from tfagents_system.errors import shown
from tfagents_system.policies.names import checkpoint_name
from tfagents_system.run_files.episodes import Q_VALUES, REWARDS, WAS_GREEDY, RecordedEpisode, action_names
from tfagents_system.transport.episode_reports import MOST_KEPT_BYTES, Episode, KeptEpisode
from tfagents_system.worker.actors import Actor

TakeEpisode = Callable[[RecordedEpisode], None]
Observer = Callable[[Any], None]  # Of a Trajectory.


@dataclasses.dataclass(frozen=True)
class Begun:
    """What is known of an episode when it begins.

    Attributes:
      seed: As of RecordedEpisode.
      curriculum: As of RecordedEpisode.
    """

    seed: int | None
    curriculum: Mapping[str, float]


class EpisodeRecorder:
    """Records a worker's episodes.

    Args:
      worker_id: The worker.
      env_id: From the number of an environment or lane to its environment's `id`, as hooks get it.
      takers: Take each episode.
      begun: Called when an episode begins, with its environment.
      policy: Of the newest step: the updates that it had, and the iteration.

    Attributes:
      actor: Chooses the actions; to be set before each call of a rollout.
    """

    actor: Actor

    def __init__(
        self,
        worker_id: int,
        env_id: Callable[[int], int],
        takers: Sequence[TakeEpisode],
        begun: Callable[[], Begun],
        policy: Callable[[], tuple[int, int]],
    ) -> None:
        self._worker_id = worker_id
        self._env_id = env_id
        self._takers = takers
        self._begun = begun
        self._policy = policy
        self._number = 0
        self._untold = set[str]()  # What was not recorded, which was said.

    def begin(self, env: int) -> EpisodeRecord:
        """An episode begins in an environment, or in a lane of a vector environment."""
        return EpisodeRecord(self, env, self._begun())

    def is_untold(self, name: str) -> bool:
        """Whether nothing has been said yet of a value that can't be recorded."""
        return name not in self._untold

    def tell_not_recorded(self, name: str, why: str) -> None:
        """Says once that a value of the environment's info can't be recorded."""
        if self.is_untold(name):
            self._untold.add(name)
            logging.warning("%s of the environment's info is not recorded: %s", name, why)

    def end(self, env: int, begun: Begun, lists: Mapping[str, np.ndarray], episode: Episode) -> None:
        """An episode has ended."""
        train_step, iteration = self._policy()
        number, self._number = self._number, self._number + 1
        recorded = RecordedEpisode(
            lists=lists,
            episode_return=episode.episode_return,
            success=episode.success,
            worker_id=self._worker_id,
            number=number,
            env_id=self._env_id(env),
            checkpoint=checkpoint_name(train_step),
            train_step=train_step,
            iteration=iteration,
            seed=begun.seed,
            curriculum=begun.curriculum,
        )
        for take in self._takers:
            take(recorded)


class EpisodeRecord:
    """The lists of one episode under way.

    Args:
      recorder: Gets them when it ends.
      env: Its environment.
      begun: What was known then.
    """

    def __init__(self, recorder: EpisodeRecorder, env: int, begun: Begun) -> None:
        self._recorder = recorder
        self._env = env
        self._begun = begun
        self._actions: list[Any] = []
        self._rewards: list[Any] = []
        self._was_greedy: list[bool] = []
        self._q_values: list[np.ndarray | None] = []
        self._records: dict[str, dict[int, Any]] = {}

    def add(self, action: Any, reward: Any, info: Mapping[str, Any]) -> None:
        """A step, right after its action was chosen: the actor is asked about it."""
        step, actor = len(self._rewards), self._recorder.actor
        self._actions.append(action)
        self._rewards.append(reward)
        self._was_greedy.append(bool(actor.was_greedy[self._env]))
        self._q_values.append(None if actor.q_values is None else actor.q_values[self._env].copy())
        for key in info:
            if isinstance(key, str) and key.startswith(RECORD_PREFIX):
                if (value := recorded(info[key])) is not None:
                    self._records.setdefault(key, {})[step] = value
                elif self._recorder.is_untold(key):  # Before the text is made, which may be large.
                    why = (
                        f"in a step it is {shown(info[key])}, neither numbers nor texts; such steps are left out (NaN)"
                    )
                    self._recorder.tell_not_recorded(key, why)

    def end(self, episode: Episode) -> None:
        """The episode has ended: it is handed over."""
        self._recorder.end(self._env, self._begun, self._lists(), episode)

    def _lists(self) -> dict[str, np.ndarray]:
        names = action_names([path for path, _ in tree.flatten_with_path(self._actions[0])])
        leaves = zip(*map(tree.flatten, self._actions), strict=True)
        lists = {name: np.array(values) for name, values in zip(names, leaves, strict=True)}
        lists[WAS_GREEDY] = np.array(self._was_greedy, np.bool_)
        lists[REWARDS] = np.array(self._rewards, np.float32)
        known = {step: values for step, values in enumerate(self._q_values) if values is not None}
        for name, values in {Q_VALUES: known, **self._records}.items():
            if not values:
                continue
            try:
                lists[name] = _column(values, len(self._rewards))
            except ValueError as error:
                self._recorder.tell_not_recorded(name, str(error))
        return lists


def _column(values: Mapping[int, Any], steps: int) -> np.ndarray:
    """Values by step as a list; NaN, or an empty text, in steps without one.

    Raises:
      ValueError: They are not of one form.
    """
    given = list(values.values())
    column = np.array(given)
    if len(given) == steps:
        return column
    dtype = column.dtype if column.dtype.kind in "fU" else np.dtype(np.float64)
    padded: np.ndarray = np.empty((steps, *column.shape[1:]), dtype)
    padded[:] = "" if dtype.kind == "U" else np.nan
    padded[list(values)] = column
    return padded


def takers_of(observers: Sequence[Any]) -> list[TakeEpisode]:
    """The methods of those observers that ask for whole episodes."""
    return [observer.take_episode for observer in observers if callable(getattr(observer, "take_episode", None))]


class BestOfWorker:
    """Those of a worker's episodes that may be among the best of the run, whose trainer keeps these.

    Episodes at least as large as one whose file was too large are passed over.

    Args:
      count: `keep_best_episodes`.
      unwatched: A context in which a file may take as long as it likes.
    """

    def __init__(
        self, count: int, unwatched: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    ) -> None:
        self._count = count
        self._unwatched = unwatched
        self._returns: list[float] = []  # The highest so far, as a heap.
        self._new: list[KeptEpisode] = []
        self._too_large_bytes = math.inf  # Of the lists of the smallest episode whose file was too large.

    def take(self, episode: RecordedEpisode) -> None:
        """An episode has ended. Its file is made at once: later, steps of the next one may be waiting."""
        size_bytes = sum(values.nbytes for values in episode.lists.values())
        is_better = len(self._returns) < self._count or episode.episode_return > self._returns[0]
        if not is_better or size_bytes >= self._too_large_bytes:
            return
        with self._unwatched():
            file = episode.to_bytes()
        kept = KeptEpisode(episode.episode_return, episode.train_step, episode.number, file)
        if len(file) > MOST_KEPT_BYTES:
            self._too_large_bytes = size_bytes
            _tell_too_large(kept)
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


def _tell_too_large(episode: KeptEpisode) -> None:
    logging.warning(
        "an episode of return %g is not kept, nor are others as large: its file has %d bytes, at most %d may be. "
        "Record less (%s<name> in the environment's info), or shorter episodes",
        *(episode.episode_return, len(episode.file), MOST_KEPT_BYTES, RECORD_PREFIX),
    )


def callables(observers: Sequence[Any]) -> list[Observer]:
    """Those that are called with each step: one with `take_episode` (see recording.py) may ask for episodes alone."""
    return [observer for observer in observers if callable(observer)]


def observed(observers: Sequence[Any]) -> dict[str, float]:
    """`result()` of those observers that have a name and one (PyMetrics)."""
    named = [observer for observer in observers if hasattr(observer, "name") and hasattr(observer, "result")]
    results = {str(observer.name): float(observer.result()) for observer in named}
    return {name: value for name, value in results.items() if math.isfinite(value)}
