"""TF-Agents' PyBullet Minitaur, with the mass of its base and the friction of its feet as parameters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import gym
import numpy as np
from tf_agents.environments import suite_pybullet

from tfagents_system.errors import UserError

# As in pybullet_envs.bullet.minitaur_env_randomizer, which draws from the global generators and can't be seeded.
_RELATIVE_MASS = (0.8, 1.2)
_BATTERY_VOLTS = (14.8, 16.8)
_MOTOR_DAMPING = (0.0, 0.01)  # N m s / rad
_FOOT_FRICTION = (0.8, 1.5)


class BodyRandomizer:
    """Randomizes the body at every reset; parameters that are set keep their value instead.

    Args:
      seed: Of the draws.

    Attributes:
      base_mass: kg; None draws it around the 3 kg of the model.
      foot_friction: Lateral friction coefficient of all feet; None draws it.
    """

    def __init__(self, seed: int | None) -> None:
        self.base_mass: float | None = None
        self.foot_friction: float | None = None
        self._rng = np.random.default_rng(seed)

    def randomize_env(self, env: Any) -> None:
        """Called by MinitaurBulletEnv in each reset, when the robot has been loaded."""
        body, draw = env.minitaur, self._rng.uniform
        base_mass = body.GetBaseMassFromURDF() * draw(*_RELATIVE_MASS)
        body.SetLegMasses([mass * draw(*_RELATIVE_MASS) for mass in body.GetLegMassesFromURDF()])
        body.SetBatteryVoltage(draw(*_BATTERY_VOLTS))
        body.SetMotorViscousDamping(draw(*_MOTOR_DAMPING))
        foot_friction = draw(*_FOOT_FRICTION)
        body.SetBaseMass(base_mass if self.base_mass is None else self.base_mass)
        body.SetFootFriction(foot_friction if self.foot_friction is None else self.foot_friction)

    def randomize_step(self, env: Any) -> None:
        """Nothing changes within an episode."""


class MinitaurEnvironment(gym.Wrapper):
    """MinitaurBulletEnv-v0 whose `set_state` takes `base_mass` (kg) and `foot_friction`.

    The gym environment that TF-Agents loads, without TF-Agents' wrappers around it: these take 150-300 us a step.
    """

    def __init__(self, seed: int | None = None, **gym_kwargs: Any) -> None:
        self._randomizer = BodyRandomizer(seed)
        # The environment prints where its models are, in each worker and each time.
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            env = suite_pybullet.load(
                "MinitaurBulletEnv-v0", gym_kwargs={"env_randomizer": self._randomizer, **gym_kwargs}
            )
        super().__init__(env.gym)
        # Its space limits motor angles to pi, but the motors turn further.
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, env.gym.observation_space.shape, np.float32)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets parameters, in the simulation at once and after every later reset."""
        body = self.unwrapped.minitaur
        setters = {"base_mass": body.SetBaseMass, "foot_friction": body.SetFootFriction}
        for name, value in state.items():
            if name not in setters:
                raise UserError(f"the Minitaur has no parameter {name!r}: it knows {', '.join(setters)}")
            if value <= 0:
                raise UserError(f"{name} must be above 0, found {value}")
            setattr(self._randomizer, name, value)
            setters[name](value)
