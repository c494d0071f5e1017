"""The first lane of a vector environment as a single environment: to look at, to play in and to draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tree

from tfagents_system.envs.backends import Backend
from tfagents_system.envs.batched_backends import make_batched_backend
from tfagents_system.envs.gym_driver import StepResult


class FirstLaneBackend(Backend):
    """Lane 0. All other lanes get its actions; a reset is one of all lanes.

    Args:
      env: What `env_ctor` returned.
      seed: Seeds it once, before its first episode; None leaves it as it is.
    """

    def __init__(self, env: Any, seed: int | None) -> None:
        self._lanes = make_batched_backend(env, seed)
        self.user_env = env
        self.observation_spec = self._lanes.observation_spec
        self.environment_action_spec = self._lanes.environment_action_spec
        self.own_action_spec = self._lanes.own_action_spec
        self.own_observation_spec = self._lanes.own_observation_spec

    def reseed(self, seed: int) -> None:
        self._lanes.reseed(seed)

    def reset(self) -> Any:
        return _of_lane_0(self._lanes.reset())

    def step(self, action: Any) -> StepResult:
        count = self._lanes.num_lanes
        step = self._lanes.step(tree.map_structure(lambda leaf: np.repeat(np.asarray(leaf)[None], count, 0), action))
        is_over = bool(step.is_last[0])
        observation, info = step.observation, step.info
        if is_over and step.final is not None:
            observation = step.final
            info = step.info if step.final_info is None else step.final_info
        elif not is_over and not self._lanes.begins_episodes and step.is_last.any():
            self._lanes.reset_lanes(step.is_last)
        return _of_lane_0(observation), step.reward[0], float(step.discount[0]), is_over, _info_of_lane_0(info)

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._lanes.set_state(state)

    def render(self) -> Any:
        return self._lanes.render()

    def layers(self) -> Iterator[Any]:
        return self._lanes.layers()


def _of_lane_0(batch: Any) -> Any:
    if isinstance(batch, np.ndarray) and batch.dtype == object:
        return batch[0]
    return tree.map_structure(lambda leaf: np.asarray(leaf)[0], batch)


def _info_of_lane_0(info: Mapping[str, Any]) -> dict[str, Any]:
    """Its entries; those of others are marked by a mask under `_key`."""
    found = {}
    for key, values in info.items():
        mask = info.get(f"_{key}")
        if not (isinstance(values, np.ndarray) or hasattr(values, "__array__")):
            continue  # Words, dictionaries.
        if (values := np.asarray(values)).ndim and (mask is None or np.asarray(mask)[0]):
            found[key] = values[0]
    return found
