"""The Minitaur's mass and friction reach the simulation itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfagents_system.envs import loading
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.examples.minitaur.params import TrainParams
from tfagents_system.settings.load_params import load_env_config

FEET = [3, 6, 9, 12, 16, 19, 22, 25]  # Link numbers of the lower legs in minitaur.urdf.
CONFIG = load_env_config(Path(__file__).parents[2] / "config" / "minitaur.json")


@pytest.fixture
def env() -> Iterator[TrainingEnvironment]:
    with loading.make_collect_env(TrainParams(CONFIG), 0, 3) as environment:
        yield environment


def physics(env: TrainingEnvironment) -> tuple[float, list[float]]:
    """What PyBullet says: mass of the base in kg, lateral friction of each foot."""
    simulation: Any = env.user_env.unwrapped
    client, body = simulation._pybullet_client, simulation.minitaur.quadruped
    return client.getDynamicsInfo(body, -1)[0], [client.getDynamicsInfo(body, foot)[1] for foot in FEET]


def test_parameters_are_those_of_the_simulation_at_once_and_after_resets(env: TrainingEnvironment) -> None:
    env.set_state({"base_mass": 5.5})
    env.set_state({"foot_friction": 0.25})
    told = [physics(env)]
    for _ in range(2):
        env.reset()
        told.append(physics(env))
    assert [mass for mass, _ in told] == [5.5] * 3
    assert [friction for _, friction in told] == [[0.25] * 8] * 3


def test_parameters_that_are_not_set_are_drawn_in_every_reset(env: TrainingEnvironment) -> None:
    drawn = []
    for _ in range(3):
        env.reset()
        mass, friction = physics(env)
        assert 2.4 <= mass <= 3.6 and all(0.8 <= value <= 1.5 for value in friction)
        drawn.append(mass)
    assert len(set(drawn)) == 3


def test_the_seed_decides_the_body(env: TrainingEnvironment) -> None:
    with loading.make_collect_env(TrainParams(CONFIG), 0, 3) as other:
        env.reset()
        other.reset()
        assert physics(env) == physics(other)


def test_a_heavier_base_moves_differently(env: TrainingEnvironment) -> None:
    def observe(mass: float) -> np.ndarray:
        env.set_state({"base_mass": mass, "foot_friction": 1.0})
        env.reset()
        for _ in range(10):
            time_step = env.step(np.full(8, 0.5, np.float32))
        return time_step.observation

    assert np.abs(observe(2.0) - observe(8.0)).max() > 0.01


def test_unknown_and_impossible_parameters(env: TrainingEnvironment) -> None:
    with pytest.raises(UserError, match="no parameter 'mass': it knows base_mass, foot_friction"):
        env.set_state({"mass": 1.0})
    with pytest.raises(UserError, match="base_mass must be above 0"):
        env.set_state({"base_mass": 0.0})


def test_shipped_configuration_varies_both_for_real(env: TrainingEnvironment) -> None:
    curriculum = Curriculum.from_config(CONFIG)
    seen: list[Any] = []
    before: dict[str, Any] = {}
    for iteration in range(600):
        values = curriculum.values_at(iteration, is_eval=False)
        if values != before:
            env.set_state(before := values)
            seen.append(physics(env))
    assert seen[0][0] == 2.5 and seen[-1][0] == 4.0
    assert seen[-1][1] == pytest.approx([0.6] * 8)
