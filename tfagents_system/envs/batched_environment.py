"""BatchedEnvironment: a vector environment, whose lanes have episodes of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tree

from tfagents_system.envs.batched_backends import RawStep, make_batched_backend
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.lanes import MAX_FLOAT32, Infos, LaneEnvironment, StepColumns, StepNews
from tfagents_system.envs.observations import nest_converter


class BatchedEnvironment(LaneEnvironment):
    """Wraps a vector environment: all of its lanes step together.

    Args:
      env: What `env_ctor` returned.
      horizon: Maximum steps of an episode.
      seed: For the environment, each lane gets one of its own from it; None leaves it as it is.
      **settings: As of LaneEnvironment.

    Attributes:
      begins_episodes: A lane's next episode begins by itself: see StepNews.began.

    Raises:
      UserError: See make_batched_backend.
    """

    begins_episodes = True

    def __init__(self, env: Any, horizon: int, *, seed: int | None = None, **settings: Any) -> None:
        backend = make_batched_backend(env, seed)
        super().__init__(backend, backend.num_lanes, horizon, **settings)
        self._to_environment = nest_converter(lambda leaf: leaf.to_environment, self.actions)
        self._first = [leaf[0] for leaf in self.new_columns().observation]
        self._lengths = np.zeros(self.num_lanes, np.int64)

    def reset(self, columns: StepColumns, lanes: Sequence[int] = ()) -> None:
        """Begins an episode in each lane; writes their first observations as the newest ones.

        Raises:
          EnvironmentFault: It has failed.
        """
        self._steps = 0
        self._episodes += self.num_lanes
        self._lengths[:] = 0
        newest = [leaf[columns.row] for leaf in columns.observation]
        try:
            self._writer.write(self._backend.reset(), self._without_history(newest))
            if self._history is not None:
                self._history.clear()
                newest[self._history_leaf][:] = self._history.values
            if columns.potential is not None:
                columns.potential[columns.row] = self._potentials(newest, range(self.num_lanes))
        except Exception as error:
            raise self._fault(error) from error

    def step(self, action: Sequence[np.ndarray], columns: StepColumns, lanes: Sequence[int] = ()) -> StepNews:
        """Steps all lanes; writes the step as the next one.

        Observations are what the step has led to: the true last one where an episode has ended.

        Args:
          action: Leaves `[N, ...]`, the agent's.
          columns: Get observations, rewards and discounts: this is their only copy.

        Returns:
          The news, whose arrays are valid until the next call.

        Raises:
          EnvironmentFault: It has failed.
        """
        taken = self._to_environment(self._nest(action))
        self._steps += 1
        try:
            return self._take(self._backend.step(taken), action, columns)
        except Exception as error:
            raise self._fault(error) from error

    def _take(self, raw: RawStep, action: Sequence[np.ndarray], columns: StepColumns) -> StepNews:
        """Checks and converts a step, and begins episodes in lanes that the environment itself does not."""
        row, out = columns.row, [leaf[columns.row + 1] for leaf in columns.observation]
        columns.reward[row] = _column("reward", raw.reward, self.num_lanes)
        columns.discount[row] = raw.discount
        self._writer.write(raw.observation, self._without_history(out))
        self._lengths += 1
        if raw.resting is not None:
            self._lengths[raw.resting] = 0
        is_last, began = raw.is_last, raw.began
        if self._history is not None:
            self._history.add(action)
            out[self._history_leaf][:] = self._history.values
        if began is not None:
            for first, observation in zip(self._first, out, strict=True):
                first[began] = observation[began]
            if raw.final is not None:
                lanes = np.flatnonzero(began)
                self._writer.write_rows(self._writer.rows(raw.final, lanes), lanes, self._without_history(out))
        is_over = self._lengths >= self._horizon
        if not self._backend.begins_episodes or is_over.any():
            is_last, began = self._end_lanes(is_last | is_over, is_last, began)
        first_potential = None
        if began is not None:
            self._lengths[began] = 0
            if self._history is not None:
                self._history.clear(began)
                self._first[self._history_leaf][began] = self._history.values[began]
            if columns.potential is not None:
                first_potential = self._potentials(self._first, np.flatnonzero(began))
        if columns.potential is not None:
            columns.potential[row + 1] = self._potentials(out, range(self.num_lanes))
        ended = np.flatnonzero(is_last).tolist()
        self.episodes_ended += len(ended)
        self._episodes += len(ended)
        return StepNews(ended, _infos(raw), began, self._first, first_potential)

    def _potentials(self, leaves: Sequence[np.ndarray], lanes: Iterable[int]) -> np.ndarray:
        """`[N]` float32: of the observations `[N, ...]` of these lanes; 0 in all others."""
        potentials = np.zeros(self.num_lanes, np.float32)
        for lane in lanes:
            potentials[lane] = self._potential_of([leaf[lane] for leaf in leaves])
        return potentials

    def _end_lanes(
        self, is_over: np.ndarray, is_last: np.ndarray, began: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Begins the next episodes of lanes that are over, at the horizon too, where the environment does not.

        Returns:
          The lanes whose episodes have ended, and those whose next ones have begun.
        """
        waits = is_over & ~is_last if self._backend.begins_episodes else is_over
        if not waits.any():
            return is_over, began
        if not self._backend.resets_lanes:
            raise ValueError(
                f"lane {int(np.argmax(waits))} has reached the horizon of {self._horizon} steps, and this vector "
                "environment can't reset single lanes: give it a time limit of its own that is not above the horizon, "
                "or raise the horizon"
            )
        lanes, rows = np.flatnonzero(waits), self._backend.reset_lanes(waits)
        is_whole = len(tree.flatten(rows)[0]) == self.num_lanes
        chosen = self._writer.rows(rows, lanes if is_whole else np.arange(len(lanes)))
        self._writer.write_rows(chosen, lanes, self._without_history(self._first))
        return is_over, waits if began is None else began | waits

    def _fault(self, error: Exception) -> EnvironmentFault:
        return EnvironmentFault(self._worker_id, self._steps, max(1, self._episodes), error, self._name, self._where())

    def _where(self) -> str:
        return f"step {self._steps} of its {self.num_lanes} lanes" if self._steps else "a reset of its lanes"

    @property
    def position(self) -> str:
        """Its approximate position, for a message: `environment 0 (about step 12 of its 64 lanes)`."""
        return f"{self._name} (about step {self._steps} of its {self.num_lanes} lanes)"

    @property
    def can_reseed(self) -> bool:
        """Whether `reseed` has an effect: EnvPool takes a seed only when it is built."""
        return self._backend.can_reseed

    def reseed(self, seed: int) -> None:
        """Seeds the lanes' episodes from the next reset on."""
        self._backend.reseed(seed)

    def _begin_episodes(self) -> None:
        self.reset(self.new_columns())


def _column(name: str, values: Any, count: int) -> np.ndarray:
    """One finite number for each lane, float32."""
    column = np.asarray(values)
    if column.shape != (count,):
        raise ValueError(f"the {name} has shape {column.shape}: expected one number for each of {count} lanes")
    is_finite = np.abs(column) <= MAX_FLOAT32
    if not is_finite.all():
        lane = int(np.argmin(is_finite))
        raise ValueError(f"lane {lane}: the {name} is {column[lane]}: it must be finite, as float32")
    return column.astype(np.float32)


def _infos(raw: RawStep) -> Infos:
    """The infos of steps, without those of resets."""
    if not raw.info:
        return ()
    if raw.final_info is not None:
        return [(raw.info, ~raw.is_last), (raw.final_info, raw.is_last)]
    return [(raw.info, None if raw.resting is None else ~raw.resting)]
