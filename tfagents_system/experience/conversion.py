"""Between data sets, in the environment's units and with names, and what a run stores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tree

from tfagents_system.checks.schedules import initial_value
from tfagents_system.envs import specs
from tfagents_system.envs.actions import LeafActions, in_words
from tfagents_system.envs.faults import describe_error
from tfagents_system.errors import UserError
from tfagents_system.experience.episodes import is_terminated, whole_episode
from tfagents_system.replay.stored_ring import StoredRing, ring_folder
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import Column, Layout, Segment, run_layout

SPECS = "specs.pbtxt"  # Beside a ring: what its actions are in the environment.
_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_ROUNDING = 1e-3  # As a share of the bounds' range: data are often stored with fewer digits.


@dataclasses.dataclass
class NamedEpisode:
    """An episode of a data set.

    Attributes:
      observations: `[T + 1, ...]` by name: "" where observations are one array, else the path, such as `robot/arm`.
      actions: `[T, ...]` in the environment's units, by name likewise.
      rewards: `[T]`.
      is_terminated: It ended in a terminal state; otherwise it was cut off.
      explored: `[T]`: whether an action was another one than the greedy one; None where nobody has said so.
    """

    observations: dict[str, np.ndarray]
    actions: dict[str, np.ndarray]
    rewards: np.ndarray
    is_terminated: bool
    explored: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Converts episodes for one environment.

    Attributes:
      layout: What its runs store.
      actions: Those of each leaf of the environment's.
      gamma: Discount of the returns, where the layout has them.
      potential: Of an observation, its leaves given; for data sets, where the layout has potentials.
    """

    layout: Layout
    actions: Sequence[LeafActions]
    gamma: float
    potential: Callable[[Sequence[np.ndarray]], float] | None = None

    @classmethod
    def of(cls, params: TrainParamsBase, file: Path) -> Conversion:
        """For what a run with these parameters stores of the environment whose specs this file has."""
        observation_spec, action_spec = specs.load_specs(file)

        def potential(leaves: Sequence[np.ndarray]) -> float:
            return params.potential(tree.unflatten_as(observation_spec, leaves))

        layout, actions = run_layout(params, observation_spec, action_spec), tree.flatten(specs.load_actions(file))
        return cls(layout, actions, initial_value(params.discount), potential)

    def to_stored(self, episode: NamedEpisode, what: str) -> Segment:
        """An episode of a data set as runs store it.

        Raises:
          UserError: Names are missing, shapes are other ones, or numbers are not finite: with all that is wrong; `what`
            names the episode.
        """
        steps, findings = len(episode.rewards), list[str]()

        def read(make: Callable[..., np.ndarray], *arguments: Any) -> np.ndarray:
            try:
                return make(*arguments)
            except UserError as error:
                findings.extend(error.findings)
                return np.empty(0)

        observation = [
            read(_leaf, episode.observations, column, "observation", steps + 1, what)
            for column in self.layout.observation
        ]
        action = [
            read(_action, episode.actions, column, leaf, steps, what)
            for column, leaf in zip(self.layout.action, self.actions, strict=True)
        ]
        reward = read(_as_float32, episode.rewards, f"the rewards of {what}")
        if findings:
            raise UserError(*findings)
        discount = np.ones(steps, np.float32)
        if episode.is_terminated:
            discount[-1] = 0.0
        explored = np.zeros(steps) if episode.explored is None else np.asarray(episode.explored).reshape(-1)
        return whole_episode(
            observation=observation,
            action=action,
            reward=reward,
            discount=discount,
            returns=self._returns(reward) if self.layout.returns else None,
            explored=explored.astype(bool).astype(np.uint8) if self.layout.explored else None,
            potential=self._potentials(observation, what) if self.layout.potential else None,
        )

    def to_named(self, episode: Segment) -> NamedEpisode:
        """An episode of a ring as data sets have it."""
        pairs = zip(self.layout.action, self.actions, episode.action, strict=True)
        return NamedEpisode(
            {name_of(column): leaf for column, leaf in zip(self.layout.observation, episode.observation, strict=True)},
            {name_of(column): _to_environment_units(leaf, actions) for column, actions, leaf in pairs},
            episode.reward,
            is_terminated(episode),
            episode.explored,
        )

    def outside(self, episode: NamedEpisode) -> int:
        """Steps of a data set's episode whose action is outside of the action space by more than a rounding."""
        steps = len(episode.rewards)
        is_outside = np.zeros(steps, bool)
        for column, leaf in zip(self.layout.action, self.actions, strict=True):
            spec = leaf.environment_spec
            low, high = np.asarray(spec.minimum, np.float64), np.asarray(spec.maximum, np.float64)
            taken = np.asarray(episode.actions[name_of(column)], np.float64).reshape(steps, *spec.shape)
            is_far = np.maximum(low - taken, taken - high) > _ROUNDING * (high - low)
            is_outside |= is_far.reshape(steps, -1).any(axis=1)
        return int(is_outside.sum())

    def _potentials(self, observation: Sequence[np.ndarray], what: str) -> np.ndarray:
        """Those of the leaves of observations, `[n, ...]` each: `[n]` float32.

        Raises:
          UserError: The params' potential raises, or is not finite; `what` names where.
        """
        assert self.potential is not None, "the layout has potentials"
        try:
            values = [self.potential([leaf[row] for leaf in observation]) for row in range(len(observation[0]))]
        except Exception as error:
            raise UserError(f"{what}: TrainParams.potential raises {describe_error(error)}: correct it") from error
        return _as_float32(values, f"the potentials of {what}")

    def _returns(self, reward: np.ndarray) -> np.ndarray:
        """R_t = gamma R_(t-1) + r_t."""
        total, returns = 0.0, []
        for value in reward.tolist():
            total = self.gamma * total + value
            returns.append(total)
        return np.clip(np.array(returns), -_MAX_FLOAT32, _MAX_FLOAT32).astype(np.float32)


def stored_episodes(
    episodes: Iterable[NamedEpisode], conversion: Conversion, source: str, tell: Callable[[str], None], what: str = ""
) -> list[Segment]:
    """Converts the episodes of a data set.

    Args:
      source: The data set, named in the note.
      tell: Called with a note on actions outside of the action space.
      what: Before `episode 3` in errors.

    Raises:
      UserError: As of `Conversion.to_stored`.
    """
    stored, outside = list[Segment](), 0
    for number, episode in enumerate(episodes):
        stored.append(conversion.to_stored(episode, f"{what}episode {number}"))
        outside += conversion.outside(episode)
    if outside:
        steps = sum(len(episode.reward) for episode in stored)
        tell(
            f"{source}: {outside:,} of {steps:,} actions ({outside / steps:.2%}) are outside of the action space and "
            "count as the nearest ones inside: give actions in the environment's units"
        )
    return stored


def actions_beside(stored: StoredRing) -> list[LeafActions] | None:
    """Of each leaf, as the specs file of the ring's run or folder has them; None where there is none."""
    for candidate in (stored.folder / SPECS, RunPaths(stored.folder.parent).specs):
        if candidate.is_file() and ring_folder(candidate.parent) == stored.folder:
            return tree.flatten(specs.load_actions(candidate))
    return None


def action_differences(ours: Sequence[LeafActions], stored: StoredRing) -> list[str]:
    """A line for each action of the same layout that means another one there; empty where nobody says what it means.

    A ring has actions in the agent's units: shares of the environment's bounds, or numbers of rows of a table.
    """
    return [
        f"{here.spec.name}: here {in_words(here)}, there {in_words(there)}, and not the same ones"
        for here, there in zip(ours, actions_beside(stored) or ours, strict=True)
        if not mean_the_same(here, there)
    ]


def mean_the_same(one: LeafActions, other: LeafActions) -> bool:
    """Whether the agent's actions are the same ones of the environment."""
    if one.rows is not None and other.rows is not None:
        return np.array_equal(one.rows, other.rows)
    bounds = ((leaf.environment_spec.minimum, leaf.environment_spec.maximum) for leaf in (one, other))
    is_same_kind = (one.rows is None) == (other.rows is None)
    return is_same_kind and all(np.array_equal(*pair) for pair in zip(*bounds, strict=True))


def name_of(column: Column) -> str:
    """Of a leaf in a data set: its path without the root."""
    return column.name.partition("/")[2]


def _leaf(arrays: Mapping[str, np.ndarray], column: Column, kind: str, length: int, what: str) -> np.ndarray:
    name = name_of(column)
    if name not in arrays:
        raise UserError(
            f"{what} has no {kind} {name or '(one array)'}: it has {', '.join(map(repr, arrays)) or 'none'}, the "
            f"environment's leaf is {column.name}"
        )
    array = np.asarray(arrays[name])
    wanted, dtype = (length, *column.shape), np.dtype(column.dtype)
    if array.shape[:1] != (length,) or not _are_rows(array.shape[1:], column.shape):
        has_all = sorted(array.shape[1:]) == sorted(column.shape)
        remedy = ": bring its axes into this order, as with numpy.transpose" if has_all else ""
        raise UserError(f"{what}: {column.name} has the shape {list(array.shape)}, this needs {list(wanted)}{remedy}")
    if dtype.kind != "f" and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise UserError(f"{what}: {column.name} is {array.dtype}, this needs {dtype}")
    return _converted(array, dtype, f"{column.name} of {what}").reshape(wanted)


def _are_rows(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether rows of one shape are those of the other: the same axes but for those of size 1, or one of both flat."""
    axes, others = ([size for size in sizes if size != 1] for sizes in (shape, wanted))
    is_flat = min(len(axes), len(others)) <= 1
    return axes == others or (is_flat and math.prod(axes) == math.prod(others))


def _action(
    arrays: Mapping[str, np.ndarray], column: Column, actions: LeafActions, steps: int, what: str
) -> np.ndarray:
    as_taken = dataclasses.replace(column, shape=tuple(actions.environment_spec.shape), dtype="float64")
    taken = _leaf(arrays, as_taken, "action", steps, what)
    try:
        return np.stack([actions.to_agent(action) for action in taken])
    except ValueError as error:
        raise UserError(f"{what}: {error}") from None


def _to_environment_units(action: np.ndarray, actions: LeafActions) -> np.ndarray:
    if actions.rows is not None:
        return actions.rows[action]
    spec = actions.environment_spec
    low, high = (np.asarray(bound, np.float64) for bound in (spec.minimum, spec.maximum))
    scaled = low + (action.astype(np.float64) + 1.0) / 2.0 * (high - low)
    return np.clip(scaled, low, high).astype(np.float32)


def _as_float32(values: Any, what: str) -> np.ndarray:
    return _converted(np.asarray(values, np.float64), np.dtype(np.float32), what)


def _converted(array: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    """The numbers as those of another type.

    Raises:
      UserError: Some are not finite, or it can't hold them: it would make infinite ones or quite other ones of them.
    """
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise UserError(f"{what} have {count} numbers that are not finite (NaN or infinite): remove those episodes")
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    is_lost = ~np.isfinite(converted) if dtype.kind == "f" else converted != array
    if is_lost.any():
        raise UserError(
            f"{what} have {int(is_lost.sum())} numbers that {dtype} can't hold, such as {array[is_lost][0]}: scale "
            "them, or remove those episodes"
        )
    return converted
