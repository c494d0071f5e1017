"""Hindsight: goals that an episode has achieved in the place of the one that it was after (HER, arXiv 1707.01495).

Observations are dictionaries with the keys of Gymnasium-Robotics, `observation`, `achieved_goal` and `desired_goal`.
Nothing of it is stored: a step gets another goal when it is drawn, and the reward that it would have had with it. The
goals are found by an index of the ring's episodes; an environment of the replay server's own says what they are worth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from absl import logging

from tfagents_system.envs import loading
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.envs.faults import EnvironmentDiedError, EnvironmentFault, describe_error
from tfagents_system.envs.gym_driver import ACHIEVED, DESIRED, GoalFunctions
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.replay.ring import Ring
from tfagents_system.train_params_base import TrainParamsBase

Strategy = Literal["future", "final", "episode"]


@dataclasses.dataclass(frozen=True)
class Hindsight:
    """Which of the drawn steps get another goal, and which.

    Attributes:
      share: Of each minibatch, rounded to whole samples: its first ones.
      strategy: Which of the goals that the step's episode has achieved, as far as the ring holds it: `future`, one
        after the step; `final`, the last one; `episode`, any behind its first observation. All are equally likely.
    """

    share: float
    strategy: Strategy = "future"

    def count(self, batch_size: int) -> int:
        """How many samples of a minibatch."""
        return round(self.share * batch_size)


class Relabelled:
    """The drawn steps that get another goal.

    Args:
      ring: Its lock is held, and its layout has `episode`.
      rng: Draws the goals.
      rows, shape: Places `[K * B]` of the steps, and (K, B).
      hindsight, functions: How, and the environment's functions of goals.
    """

    def __init__(
        self,
        ring: Ring,
        rng: np.random.Generator,
        rows: np.ndarray,
        shape: tuple[int, int],
        hindsight: Hindsight,
        functions: GoalFunctions,
    ) -> None:
        self._ring, self._functions = ring, functions
        self._count = hindsight.count(shape[1])
        self._which = np.arange(rows.size).reshape(shape)[:, : self._count].reshape(-1)
        self._rows = rows[self._which]
        names = [column.name for column in ring.layout.observation]
        self._achieved = ring.observation[names.index(f"observation/{ACHIEVED}")]
        self._desired_leaf = names.index(f"observation/{DESIRED}")
        self._goals = self._achieved.take(_goal_rows(ring, rng, self._rows, hindsight.strategy), axis=0)

    def judge(self, reward: Sequence[np.ndarray], discount: Sequence[np.ndarray]) -> None:
        """Writes what the new goals give into n arrays `[K * B]` each, of the k-th step behind these steps."""
        steps, ring = len(reward), self._ring
        left = ring.steps_left[self._rows]
        # Behind the segment's end is another one's: the last step stands for those, and nobody reads what it gives.
        behind = [(self._rows + np.minimum(k, left)) % ring.num_rows for k in range(1, steps + 1)]
        achieved = self._achieved.take(np.concatenate(behind), axis=0)
        desired = np.tile(self._goals, (steps,) + (1,) * (self._goals.ndim - 1))
        rewards = self._functions.rewards(achieved, desired).reshape(steps, -1)
        terminated = self._functions.terminated(achieved, desired)
        for k in range(steps):
            reward[k][self._which] = rewards[k]
            if terminated is not None:
                ends = terminated.reshape(steps, -1)[k]
                discount[k][self._which] = self._discounts(discount[k][self._which], ends, behind[k])

    def _discounts(self, recorded: np.ndarray, ends: np.ndarray, behind: np.ndarray) -> np.ndarray:
        """0 where the new goal ends the episode, or where it was over for another reason than the goal it had."""
        over = np.flatnonzero((recorded == 0) & ~ends)
        if len(over):
            ring = self._ring
            own = ring.observation[self._desired_leaf][(behind[over] - 1) % ring.num_rows]
            was_reached = self._functions.terminated(self._achieved[behind[over]], own)
            assert was_reached is not None
            recorded[over[was_reached]] = 1.0
        return np.where(ends, np.float32(0), recorded)

    def replace_goals(self, observations: Sequence[Sequence[np.ndarray]]) -> None:
        """Writes the new goals into drawn observations, leaves `[K, B, ...]`."""
        for observation in observations:
            leaf = observation[self._desired_leaf]
            leaf[:, : self._count] = self._goals.reshape(len(leaf), self._count, *leaf.shape[2:])


# Where the goals are.


def _goal_rows(ring: Ring, rng: np.random.Generator, rows: np.ndarray, strategy: Strategy) -> np.ndarray:
    """Rows whose achieved goals are to be desired, of rows `[N]` at which transitions start."""
    episodes = episodes_of(ring)
    located = episodes.find(rows)
    if strategy == "future":
        goal = rng.integers(located.place + 1, located.last + 1)
    elif strategy == "final":
        goal = located.last
    else:
        goal = rng.integers(located.first + 1, located.last + 1)
    return episodes.rows(located, goal)


class Located(NamedTuple):
    """Where rows are, `[N]` each.

    Attributes:
      segment, episode: Their numbers in the index.
      place: The row's own, within its episode.
      first, last: The first and the last place of its episode that the ring holds.
    """

    segment: np.ndarray
    episode: np.ndarray
    place: np.ndarray
    first: np.ndarray
    last: np.ndarray


class EpisodeIndex:
    """The rows of each episode that a ring holds, in the order of the episode: its segments are anywhere in the ring.

    It is read from the ring's own rows, each of them once: what a killed process or a checkpoint left in the files is
    all that it needs. Every row has a *place* in its episode, one number a step. Segments of an episode overlap where
    the later one repeats steps, so some places have several rows with the same observation. An episode of which rows
    in the middle are damaged counts as two.

    Segments are sorted by episode whenever some have come or gone: milliseconds for tens of thousands of them.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._held = (0, 0)
        self._ending = np.zeros(ring.num_rows, np.int32)  # By rows of the files: the segment that ends there.
        # As they were stored: number of the episode, first and last place in it, number of the last row.
        self._segments = np.empty((0, 4), np.int64)

    def find(self, rows: np.ndarray) -> Located:
        """Where rows, places `[N]` at which transitions start, are in their episodes, in the ring as it is now."""
        if self._ring.held != self._held:
            self._update()
        left = self._ring.steps_left[rows]
        segment = self._ending[(rows + left) % self._ring.num_rows]
        episode = self._episode[segment]
        return Located(
            segment,
            episode,
            place=self._end[segment] - left,
            first=self._start[self._head[episode]],
            last=self._end[self._tail[episode] - 1],
        )

    def rows(self, located: Located, places: np.ndarray) -> np.ndarray:
        """Rows `[N]` that have these places, each one of the episode that was found; as places of the files."""
        segment = located.segment
        is_elsewhere = (places > self._end[segment]) | (places < self._start[segment])
        if is_elsewhere.any():
            segment = segment.copy()
            segment[is_elsewhere] = self._segment_at(located.episode[is_elsewhere], places[is_elsewhere])
        rows: np.ndarray = (self._shift[segment] + places) % self._ring.num_rows
        return rows

    def _segment_at(self, episode: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The first segments `[N]` of these episodes that do not end before these places."""
        low, high = self._head[episode], self._tail[episode] - 1
        while (low < high).any():
            middle = (low + high) // 2
            is_before = self._end[middle] < places
            low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
        return low

    def _update(self) -> None:
        """Takes in the segments that have come, forgets those that are given up, and sorts them."""
        oldest, end = self._ring.held
        came = self._read(max(oldest, self._held[1]), end)
        self._segments = np.concatenate([self._segments[self._segments[:, 3] >= oldest], came])
        self._held = oldest, end
        order = np.lexsort((self._segments[:, 1], self._segments[:, 0]))
        number, self._start, self._end, last = self._segments[order].T
        self._shift = last - self._end
        count = len(last)
        goes_on = (number[1:] == number[:-1]) & (self._start[1:] <= self._end[:-1])
        self._head = np.flatnonzero(np.append(True, ~goes_on)[:count])
        self._tail = np.append(self._head[1:], count)[: len(self._head)]
        self._episode = np.repeat(np.arange(len(self._head)), self._tail - self._head)
        self._ending[last % self._ring.num_rows] = np.arange(count)

    def _read(self, begin: int, end: int) -> np.ndarray:
        """The segments in these rows."""
        ring = self._ring
        left = ring.steps_left[np.arange(begin, end) % ring.num_rows]
        last = begin + np.flatnonzero(left == 0)
        first = np.append(begin, last[:-1] + 1)[: len(last)]
        is_whole = last > first  # One row alone is damaged.
        first, last = first[is_whole], last[is_whole]
        assert ring.episode is not None, "the layout says of which episode a row is"
        number, start = ring.episode[first % ring.num_rows].T
        return np.column_stack([number, start, start + last - first, last])


def episodes_of(ring: Ring) -> EpisodeIndex:
    """The index of a ring, made anew where its rows are others."""
    if ring.episodes is None:
        ring.episodes = EpisodeIndex(ring)
    return ring.episodes


# What a goal is worth.


class GoalEnvironment:
    """An environment that is never stepped, with the curriculum's values of the iteration whose minibatches are drawn.

    So what a goal is worth follows from the iteration, also after a restart, and after going back to an earlier one.
    Raises EnvironmentFault where its reset fails.
    """

    def __init__(self, env: TrainingEnvironment, curriculum: Curriculum) -> None:
        self._curriculum = curriculum
        self._env, self._set = env, dict[str, float]()
        self._env.reset()  # Some environments only have what their functions need behind a reset.

    def at(self, iteration: int) -> GoalFunctions:
        """Its functions with what the curriculum has for an iteration; a reset makes that take effect, as for a worker.

        Raises:
          UserError: The environment has no such parameter, or raises.
        """
        values = self._curriculum.values_at(iteration, is_eval=False)
        changed = {name: value for name, value in values.items() if self._set.get(name) != value}
        if changed:
            try:
                for name, value in changed.items():
                    self._env.set_state({name: value})
            except (UserError, EnvironmentFault, EnvironmentDiedError):
                raise
            except Exception as error:
                what = f"set_state({{{name!r}: {value}}}) of the replay server's environment failed"
                raise UserError(f"{what}: {describe_error(error)}") from error
            self._set |= changed
            self._env.reset()
            logging.info("what goals are worth in iteration %d: %s", iteration, changed)
        return self._env.goal_functions


def make_goal_environment(params: TrainParamsBase, env_id: int, seed: int) -> GoalEnvironment:
    """Builds and resets the replay server's environment, whose `id` for `collect_env_args_kwargs` is no worker's.

    Raises:
      UserError: A hook raises for this `id`, or returns something other than it should.
      EnvironmentFault: Its reset fails.
    """
    name = "the replay server's environment"
    try:
        env = loading.make_collect_env(params, env_id, seed, name=name)
    except (UserError, EnvironmentDiedError):
        raise
    except Exception as error:
        raise UserError(
            f"{name}, which computes the rewards of hindsight, could not be built: {describe_error(error)}. Its id "
            f"for collect_env_args_kwargs is {env_id}, the one behind those of all workers: let the hook take it"
        ) from error
    return GoalEnvironment(env, Curriculum.from_config(params.env_config))
