"""Drives vector environments of Gymnasium 1.x and of EnvPool, and objects that look like them.

Of the lanes of a vector environment each has its own episode. When it has ended, the environment itself begins the next
one. Gymnasium calls it the autoreset mode:

    SAME_STEP   with the step that ends the episode: it returns the next one's first observation, `info` the last one
    NEXT_STEP   with the step after it, which ignores the lane's action; EnvPool does so, too
    DISABLED    by `reset(options={"reset_mask": ...})`, which is called here after each step that ends episodes

Runs under SAC_ENV_PYTHON as well: standard library and NumPy only, Python 3.9, NumPy 1 or 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfagents_system.envs import gym_driver
from tfagents_system.envs.gym_driver import Backend, gym_layers, render_gym, space_nest
from tfagents_system.errors import UserError

SAME_STEP, NEXT_STEP, DISABLED = "SameStep", "NextStep", "Disabled"


class LanesStep(NamedTuple):
    """One step of all lanes, with observations as the library returns them.

    Attributes:
      observation: A batch of all lanes: the first ones of episodes that have begun, else the next ones.
      reward: `[N]`.
      discount: `[N]` float32.
      is_last: `[N]` bool: the lane's episode has ended with this step.
      infos: Of StepNews: without those of resets.
      began: `[N]` bool: lanes whose next episode has begun by itself; None: none of them.
      resting: `[N]` bool: those of them that made no step, since their last episode had ended before; None: none.
      last: The last observations of the others.
    """

    observation: Any
    reward: np.ndarray
    discount: np.ndarray
    is_last: np.ndarray
    infos: Sequence[tuple[Mapping[str, Any], np.ndarray | None]] = ()
    began: np.ndarray | None = None
    resting: np.ndarray | None = None
    last: Mapping[int, Any] = {}


class VectorBackend(Backend):
    """A vector environment of Gymnasium 1.x, of EnvPool, or of a simulator that looks like one.

    Raises:
      UserError: Its autoreset mode can't be told, or SAC can't use its spaces.
    """

    is_vector = True

    def __init__(self, env: Any, seed: int | None) -> None:
        self.user_env = env
        self.num_lanes = int(env.num_envs)
        self._mode = _autoreset_mode(env)
        self.begins_episodes = self._mode != DISABLED
        self.observation_spaces = space_nest(env.single_observation_space)
        self.action_spaces = space_nest(env.single_action_space)
        inner = list(self.layers())[-1]
        self._lanes = getattr(inner, "envs", None)  # Of Gymnasium's SyncVectorEnv.
        modules = {cls.__module__ for cls in type(inner).__mro__}
        is_envpool = any(module.partition(".")[0] == "envpool" for module in modules)
        is_of_gymnasium = bool(modules & {f"gymnasium.vector.{kind}_vector_env" for kind in ("sync", "async")})
        self.can_reseed = not is_envpool  # EnvPool takes a seed when it is built, and warns of any other.
        # In the other modes a class may ignore the mask, and reset all lanes.
        self.can_reset_lanes = self._mode == DISABLED or is_envpool or is_of_gymnasium
        self._ended = np.zeros(self.num_lanes, bool)  # With the last step.
        self._seed_for_reset: int | None = None
        if seed is not None:
            self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self._seed_for_reset = seed if self.can_reseed else None
        for layer in self.layers():
            gym_driver.seed_action_space(layer, seed)

    def reset(self) -> Any:
        seeded = {} if self._seed_for_reset is None else {"seed": self._seed_for_reset}
        self._seed_for_reset = None
        self._ended = np.zeros(self.num_lanes, bool)
        return self.user_env.reset(**seeded)[0]

    def reset_lanes(self, mask: np.ndarray) -> dict[int, Any]:
        observation, _ = self.user_env.reset(options={"reset_mask": mask})
        lanes = np.flatnonzero(mask).tolist()
        leaf = observation
        while isinstance(leaf, (Mapping, tuple)):
            leaf = next(iter(leaf.values() if isinstance(leaf, Mapping) else leaf))
        has_all = len(leaf) == self.num_lanes  # EnvPool returns those of these lanes.
        rows = lanes if has_all else range(len(lanes))
        return {lane: _of_lane(observation, row) for lane, row in zip(lanes, rows)}

    def step(self, action: Any) -> LanesStep:
        observation, reward, terminated, truncated, info = self.user_env.step(action)
        is_last = np.logical_or(np.asarray(terminated), np.asarray(truncated))
        discount = np.subtract(1.0, np.asarray(terminated), dtype=np.float32)
        infos: list[tuple[Mapping[str, Any], np.ndarray | None]] = [(info, None)] if info else []
        began = resting = None
        last: dict[int, Any] = {}
        if self._mode == NEXT_STEP and self._ended.any():
            began = resting = self._ended
            infos = [(info, ~resting)] if info else []
        elif self._mode == SAME_STEP and is_last.any():
            if (final := info.get("final_obs")) is None:
                raise KeyError(
                    "a lane has ended, and info has no final_obs: its last observation is lost. Return it there, or "
                    "use another autoreset mode"
                )
            began = is_last
            last = {lane: _of_lane(final, lane) for lane in np.flatnonzero(is_last).tolist()}
            if (final_info := info.get("final_info")) is not None:  # Else `info` has what it says of all lanes.
                infos = [(info, ~is_last), (final_info, is_last)]
        self._ended = is_last
        return LanesStep(observation, np.asarray(reward), discount, is_last, infos, began, resting, last)

    def set_state(self, state: Mapping[str, Any]) -> None:
        layers = list(self.layers())
        has_own = any(map(gym_driver.has_own_set_state, layers))
        if self._lanes is not None and not has_own:
            for lane in self._lanes:
                gym_driver.set_state(gym_layers(lane), state)
        elif hasattr(self.user_env, "set_attr") and not has_own:
            _set_in_processes(self.user_env, state)
        else:
            gym_driver.set_state(layers, state)

    def render(self) -> Any:
        if self._lanes is not None:
            return render_gym(self._lanes[0])
        pictures = self.user_env.render()
        return None if pictures is None else pictures[0]


def _of_lane(batch: Any, lane: int) -> Any:
    """One lane's observation, of a batch or of an array of objects with an observation for each lane."""
    if isinstance(batch, np.ndarray) and batch.dtype == object:
        return batch[lane]
    if isinstance(batch, Mapping):
        return {key: _of_lane(part, lane) for key, part in batch.items()}
    return tuple(_of_lane(part, lane) for part in batch) if isinstance(batch, tuple) else np.asarray(batch)[lane]


def _autoreset_mode(env: Any) -> str:
    metadata = getattr(env, "metadata", None)
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    mode = getattr(mode, "value", mode)
    if mode not in (SAME_STEP, NEXT_STEP, DISABLED):
        raise UserError(
            f"env_ctor returned the vector environment {env!r}, whose autoreset mode can't be told "
            f'(metadata["autoreset_mode"] is {mode!r}): set it to a gymnasium.vector.AutoresetMode, as the vector '
            "environments of Gymnasium 1.x do, or return a single environment"
        )
    return str(mode)


def _set_in_processes(env: Any, state: Mapping[str, Any]) -> None:
    """As gym_driver.set_state, in lanes that run in processes of their own.

    What they don't have is not asked for: an error ends the process of AsyncVectorEnv's lane.
    """
    # MuJoCo's environments have an unrelated set_state(qpos, qvel).
    if all(env.call("has_wrapper_attr", "set_state")) and not any(env.call("has_wrapper_attr", "do_simulation")):
        env.call("set_state", dict(state))
        return
    for name, value in state.items():
        if not all(env.call("has_wrapper_attr", name)):
            raise UserError(
                f"the lanes of {env!r} have no parameter {name!r} that can be set: give them such an attribute, or a "
                "set_state(self, state) that takes a dictionary"
            )
        env.set_attr(name, value)
