"""Between data sets, in the environment's units and with names, and what a run stores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tree

from tfagents_system.checks.schedules import initial_value
from tfagents_system.envs import specs
from tfagents_system.envs.actions import LeafActions
from tfagents_system.envs.faults import describe_error
from tfagents_system.errors import UserError
from tfagents_system.experience.episodes import StoredEpisode
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.layout import Column, Layout
from tfagents_system.transport.run_layout import run_layout

_MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclasses.dataclass
class NamedEpisode:
    """An episode of a data set.

    Attributes:
      observations: `[T + 1, ...]` by name: "" where observations are one array, else the path, such as `robot/arm`.
      actions: `[T, ...]` in the environment's units, by name likewise.
      rewards: `[T]`.
      is_terminated: It ended in a terminal state; otherwise it was cut off.
      starts: It begins with a reset.
      explored: `[T]`: whether an action was another one than the greedy one; None where nobody has said so.
    """

    observations: dict[str, np.ndarray]
    actions: dict[str, np.ndarray]
    rewards: np.ndarray
    is_terminated: bool
    starts: bool = True
    explored: np.ndarray | None = None


class Conversion:
    """Converts episodes for one environment.

    Args:
      layout: What its runs store.
      actions: Those of each leaf of the environment's.
      gamma: Discount of the returns, where the layout has them.
      potential: Of an observation, its leaves given; for data sets, where the layout has potentials.
      horizon: Steps of the environment's longest episode; None: unknown.

    Attributes:
      layout, actions, horizon: As above.
    """

    def __init__(
        self,
        layout: Layout,
        actions: Sequence[LeafActions],
        gamma: float,
        potential: Callable[[Sequence[np.ndarray]], float] | None = None,
        horizon: int | None = None,
    ) -> None:
        self.layout = layout
        self.horizon = horizon
        self._potential = potential
        self.actions = actions
        self._gamma = gamma

    def to_stored(self, episode: NamedEpisode, what: str) -> StoredEpisode:
        """An episode of a data set as runs store it.

        Raises:
          UserError: Names are missing, shapes are other ones, or numbers are not finite: with all that is wrong; `what`
            names the episode.
        """
        steps, found = len(episode.rewards), _Found()
        observation = [
            found.read(_leaf, episode.observations, column, "observation", steps + 1, what)
            for column in self.layout.observation
        ]
        action = [
            found.read(_action, episode.actions, column, leaf, steps, what)
            for column, leaf in zip(self.layout.action, self.actions, strict=True)
        ]
        told = np.asarray(episode.rewards, np.float64)
        reward = found.read(_converted, told, np.dtype(np.float32), f"the rewards of {what}")
        if found.findings:
            raise UserError(*found.findings)
        discount = np.ones(steps, np.float32)
        if episode.is_terminated:
            discount[-1] = 0.0
        explored = np.zeros(steps) if episode.explored is None else np.asarray(episode.explored).reshape(-1)
        return StoredEpisode(
            observation,
            action,
            reward,
            discount,
            episode.starts,
            ends=True,
            returns=self._returns(reward) if self.layout.returns else None,
            explored=explored.astype(bool).astype(np.uint8) if self.layout.explored else None,
            potential=self.potentials(observation, what) if self.layout.potential else None,
        )

    def to_named(self, episode: StoredEpisode) -> NamedEpisode:
        """The other way round."""
        return NamedEpisode(
            {name_of(column): leaf for column, leaf in zip(self.layout.observation, episode.observation, strict=True)},
            {
                name_of(column): _to_environment_units(action, leaf)
                for column, action, leaf in zip(self.layout.action, episode.action, self.actions, strict=True)
            },
            episode.reward,
            episode.is_terminated,
            episode.starts,
            episode.explored,
        )

    def potentials(self, observation: Sequence[np.ndarray], what: str) -> np.ndarray:
        """Those of the leaves of observations, `[n, ...]` each: `[n]` float32.

        Raises:
          UserError: The params' potential raises, or is not finite; `what` names where.
        """
        assert self._potential is not None, "the layout has potentials"
        try:
            found = [self._potential([leaf[row] for leaf in observation]) for row in range(len(observation[0]))]
        except Exception as error:
            raise UserError(f"{what}: TrainParams.potential raises {describe_error(error)}: correct it") from error
        return _converted(np.asarray(found, np.float64), np.dtype(np.float32), f"the potentials of {what}")

    def _returns(self, reward: np.ndarray) -> np.ndarray:
        """R_t = gamma R_(t-1) + r_t."""
        total, returns = 0.0, []
        for each in reward.tolist():
            total = self._gamma * total + each
            returns.append(total)
        return np.clip(np.array(returns), -_MAX_FLOAT32, _MAX_FLOAT32).astype(np.float32)


class _Found:
    """Collects what is wrong with several arrays."""

    def __init__(self) -> None:
        self.findings: list[str] = []

    def read(self, make: Callable[..., np.ndarray], *arguments: Any) -> np.ndarray:
        """What the call returns; something empty where it raises UserError."""
        try:
            return make(*arguments)
        except UserError as error:
            self.findings += error.findings
            return np.empty(0)


def conversion_for(params: TrainParamsBase, file: Path) -> Conversion:
    """For what a run with these parameters stores of the environment whose specs this file has."""
    observation_spec, action_spec = specs.load_specs(file)

    def potential(leaves: Sequence[np.ndarray]) -> float:
        return params.potential(tree.unflatten_as(observation_spec, leaves))

    layout, actions = run_layout(params, observation_spec, action_spec), tree.flatten(specs.load_actions(file))
    return Conversion(layout, actions, initial_value(params.discount), potential, params.horizon)


def name_of(column: Column) -> str:
    """Of a leaf in a data set: its path without the root."""
    return column.name.partition("/")[2]


def flat(nest: object) -> dict[str, np.ndarray]:
    """The arrays of a nest by their paths."""
    return {"/".join(map(str, path)): np.asarray(leaf) for path, leaf in _leaves(nest)}


def nested(arrays: Mapping[str, np.ndarray]) -> object:
    """The nest of dictionaries whose paths the names are; the array itself where its name is empty."""
    if list(arrays) == [""]:
        return arrays[""]
    nest: dict[str, object] = {}
    for name, array in arrays.items():
        *folders, last = name.split("/")
        inner = nest
        for folder in folders:
            inner = inner.setdefault(folder, {})  # type: ignore[assignment]
        inner[last] = array
    return nest


def _leaves(nest: object) -> list[tuple[tuple[object, ...], object]]:
    return list(tree.flatten_with_path(nest))


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


def _are_rows(found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether rows of one shape are those of the other: the same axes but for those of size 1, or one of both flat."""
    axes, own = ([size for size in shape if size != 1] for shape in (found, wanted))
    is_flat = min(len(axes), len(own)) <= 1
    return axes == own or (is_flat and math.prod(axes) == math.prod(own))


def _action(
    arrays: Mapping[str, np.ndarray], column: Column, actions: LeafActions, steps: int, what: str
) -> np.ndarray:
    as_taken = dataclasses.replace(column, shape=tuple(actions.environment_spec.shape), dtype="float64")
    own = _leaf(arrays, as_taken, "action", steps, what)
    try:
        return np.stack([actions.to_agent(action) for action in own])
    except ValueError as error:
        raise UserError(f"{what}: {error}") from None


def _to_environment_units(action: np.ndarray, actions: LeafActions) -> np.ndarray:
    if actions.rows is not None:
        return actions.rows[action]
    spec = actions.environment_spec
    low, high = (np.asarray(bound, np.float64) for bound in (spec.minimum, spec.maximum))
    scaled = low + (action.astype(np.float64) + 1.0) / 2.0 * (high - low)
    return np.clip(scaled, low, high).astype(np.float32)


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
