"""Steps of an environment with random actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.actions import random_actions
from tfagents_system.envs.training_environment import TrainingEnvironment


def random_action(env: TrainingEnvironment, rng: np.random.Generator) -> Any:
    return tree.map_structure(lambda spec: random_actions(spec, rng), env.action_spec())


def take_steps(env: TrainingEnvironment, seed: int, steps: int) -> list[Any]:
    """Time steps of the first episode, at most `steps`; the same seed gives the same actions."""
    rng = np.random.default_rng(seed)
    time_steps = [env.reset()]
    while len(time_steps) <= steps and time_steps[-1].step_type != ts.StepType.LAST:
        time_steps.append(env.step(random_action(env, rng)))
    return time_steps
