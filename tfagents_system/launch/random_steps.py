"""Steps of an environment with random actions, and of a device with its default one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.actions import random_actions
from tfagents_system.envs.training_environment import TrainingEnvironment


def trial_action(env: TrainingEnvironment, rng: np.random.Generator) -> Any:
    """A random action; the default one of a device, which random ones may harm, or the middle of its bounds."""
    if env.device is None:
        return tree.map_structure(lambda spec: random_actions(spec, rng), env.action_spec())
    return env.device.trial_action(env.actions)


def trial_action_of(env: TrainingEnvironment) -> Callable[[], Any]:
    """The same as a function, in the environment's own units."""
    if env.device is None:
        return lambda: env.user_env.action_space.sample()
    return lambda: env.in_environment_units(trial_action(env, np.random.default_rng(0)))


def take_steps(env: TrainingEnvironment, seed: int, steps: int) -> list[Any]:
    """Time steps of the first episode, at most `steps`; the same seed gives the same actions."""
    rng = np.random.default_rng(seed)
    time_steps = [env.reset()]
    while len(time_steps) <= steps and time_steps[-1].step_type != ts.StepType.LAST:
        time_steps.append(env.step(trial_action(env, rng)))
    return time_steps
