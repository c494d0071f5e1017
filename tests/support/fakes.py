"""Small environments and TrainParams for tests: NumPy only, every number of theirs is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gym
import gymnasium
import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.environments import py_environment
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from tfagents_system.train_params_base import TrainParamsBase


def agent_of(params_class: type[TrainParamsBase], observation: Any, action: Any, **attributes: Any) -> tf_agent.TFAgent:
    """The agent that TrainParams with these attributes make for specs of an observation and an action."""
    params = params_class({"horizon": 10})
    for name, value in attributes.items():
        setattr(params, name, value)
    return params.agent_ctor(ts.time_step_spec(observation), action, tf.Variable(0, dtype=tf.int64))


class NumberedEnv(py_environment.PyEnvironment):
    """Observes where it is: [worker, episode, step], from 0. Rewards the step that was taken, from 1.

    Args:
      worker: First number of every observation.
      terminate_at: The episode terminates after that many steps; None never does.
    """

    def __init__(self, worker: int = 0, terminate_at: int | None = None, seed: int | None = None) -> None:
        super().__init__()
        self.worker = worker
        self.seed_of_ctor = seed
        self.states: list[dict[str, Any]] = []
        self._terminate_at = terminate_at
        self._episode = -1
        self._step_of_episode = 0

    def observation_spec(self) -> Any:
        return array_spec.ArraySpec((3,), np.float32, "observation")

    def action_spec(self) -> Any:
        return array_spec.BoundedArraySpec((2,), np.float32, [-1.0, 0.0], [1.0, 10.0], "action")

    def set_state(self, state: dict[str, Any]) -> None:
        unknown = set(state) - {"mass", "friction"}
        if unknown:
            raise KeyError(f"no parameter {unknown.pop()}")
        self.states.append(state)

    def _observation(self) -> np.ndarray:
        return np.array([self.worker, self._episode, self._step_of_episode], np.float32)

    def _reset(self) -> ts.TimeStep:
        self._episode += 1
        self._step_of_episode = 0
        return ts.restart(self._observation())

    def _step(self, action: Any) -> ts.TimeStep:
        self._step_of_episode += 1
        reward = float(self._step_of_episode)
        if self._step_of_episode == self._terminate_at:
            return ts.termination(self._observation(), reward)
        return ts.transition(self._observation(), reward, discount=1.0)


class CounterEnv(gymnasium.Env):
    """Gymnasium: counts steps, always in the same buffer of float64.

    Args:
      terminate_at: terminated after that many steps.
      truncate_at: truncated after that many steps.
      raise_at: Raises in that step.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}

    def __init__(self, terminate_at: int = 0, truncate_at: int = 0, raise_at: int = 0) -> None:
        self.terminate_at, self.truncate_at, self.raise_at = terminate_at, truncate_at, raise_at
        self.mass = 1.0
        self.label = "fake"
        self.actions: list[np.ndarray] = []
        self.seeds: list[int | None] = []
        self._buffer = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self._buffer[:] = 0.0, self.mass
        return self._buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self._buffer[0] += 1
        step = int(self._buffer[0])
        if step == self.raise_at:
            raise ZeroDivisionError("the motor is off")
        info = {"log/step": step, "log/text": "no number", "other": 3, "is_success": step == self.truncate_at}
        return self._buffer, step * 0.5, step == self.terminate_at, step == self.truncate_at, info

    def render(self) -> np.ndarray:
        if self.render_mode != "rgb_array":
            raise RuntimeError("built without a render mode")
        return np.full((33, 41, 3), int(self._buffer[0]) % 256, np.uint8)


class OldGymEnv(gym.Env):
    """gym 0.23: 4-tuples, observations alone from reset, seeded by `seed`."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, terminate_at: int = 0) -> None:
        self.terminate_at = terminate_at
        self.seeds: list[int | None] = []
        self._steps = 0

    def seed(self, seed: int | None = None) -> list[int | None]:
        self.seeds.append(seed)
        return [seed]

    def reset(self) -> np.ndarray:
        self._steps = 0
        return np.zeros(1)

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        self._steps += 1
        return np.full(1, self._steps), 1.0, self._steps == self.terminate_at, {"log/height": 2.0 * self._steps}

    def render(self, mode: str = "human") -> Any:
        return np.full((20, 20, 3), self._steps, np.uint8) if mode == "rgb_array" else None


class DictEnv(gymnasium.Env):
    """Gymnasium with an observation of every kind, and an action without dimensions."""

    observation_space = gymnasium.spaces.Dict(
        {
            "joints": gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float64),
            "camera": gymnasium.spaces.Box(0, 255, (4, 4, 1), np.uint8),
            "parts": gymnasium.spaces.Tuple(
                (gymnasium.spaces.Discrete(3, start=1), gymnasium.spaces.MultiBinary(2)),
            ),
        }
    )
    action_space = gymnasium.spaces.Box(-3.0, 1.0, (), np.float32)

    def __init__(self) -> None:
        self.actions: list[Any] = []

    def _observe(self) -> dict[str, Any]:
        count = len(self.actions)
        return {
            "joints": np.full(3, 0.25),
            "camera": np.full((4, 4, 1), count, np.uint8),
            "parts": (1 + count % 3, np.array([0, 1], np.int8)),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        return self._observe(), 0.0, False, False, {}


class FakeParams(TrainParamsBase):
    """TrainParams around a CounterEnv, small enough to train for a moment."""

    actor_fc_layer_params: Sequence[int] = (16,)
    critic_joint_fc_layer_params: Sequence[int] = (16,)
    num_iter = 4
    updates_per_iter = 8
    batch_size = 8
    num_eval_episodes = 2
    num_initial_episodes = 1
    buffer_size = 200

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        return CounterEnv(*args, **kwargs)
