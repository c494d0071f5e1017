"""EnvPool's environments, where it is installed, have the returns of Gymnasium's own."""

from __future__ import annotations

import importlib
import json

import gymnasium
import numpy as np
import pytest

from tests.support.launching import ROOT
from tfagents_system.checks.findings import Findings
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.launch.environment_checks import EnvironmentTrial
from tfagents_system.transport.segments import Layout
from tfagents_system.worker.rollout import Rollout, SegmentBuilder

envpool = pytest.importorskip("envpool", reason="the extra `envpool` is not installed")
LANES, HORIZON = 4, 200


class Damping:
    """Turns against the pendulum's speed, each lane by its own strength: episodes that stay predictable."""

    q_values = None
    explored = was_greedy = np.zeros(LANES, np.bool_)

    def reset(self, lanes):
        pass

    def act(self, steps):
        strength = np.linspace(0.05, 0.2, LANES, dtype=np.float32)
        return [np.clip(-steps.observation[0][:, 2] * strength, -1.0, 1.0)[:, None]]


def collect(env, episodes):
    segments = []
    layout = Layout.from_specs(env.observation_spec(), env.action_spec())
    rollout = Rollout([env], Damping(), new_builder=lambda: SegmentBuilder(layout, HORIZON, segments.append))
    return rollout.episodes(episodes), segments


def return_of_gymnasium(first, actions):
    """Of an episode of Gymnasium's Pendulum-v1 that begins with this observation and takes these actions."""
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.reset()
    env.state = np.array([np.arctan2(first[1], first[0]), first[2]], np.float64)
    return sum(float(env.step(2.0 * action)[1]) for action in actions)


def test_episodes_have_the_returns_of_gymnasium_lengths_and_ends_too():
    env = TrainingEnvironment(envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=LANES, seed=3), HORIZON)
    episodes, segments = collect(env, 10)
    assert len(segments) == len(episodes) == 10
    for episode, segment in zip(episodes, segments, strict=True):
        assert episode.length == HORIZON and np.all(segment.discount == 1.0), "a time limit"
        expected = return_of_gymnasium(segment.observation[0][0], segment.action[0])
        assert episode.episode_return == pytest.approx(expected, rel=2e-3)
    assert len({episode.episode_return for episode in episodes}) == 10
    env.close()


def test_a_horizon_below_its_own_limit_resets_single_lanes():
    env = TrainingEnvironment(envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=LANES, seed=3), 50)
    episodes, segments = collect(env, 9)
    assert [episode.length for episode in episodes] == [50] * 9
    for segment in segments:
        speed, following = segment.observation[0][:-1, 2], segment.observation[0][1:, 2]
        assert np.abs(following - speed).max() < 1.5, "no step leads into another episode"
    env.close()


def test_seeds_are_taken_when_it_is_built_and_can_not_be_given_later():
    returns = []
    for seed in (3, 3, 4):
        env = TrainingEnvironment(
            envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=LANES, seed=seed), HORIZON, seed=7
        )
        assert not env.can_reseed
        returns.append([episode.episode_return for episode in collect(env, 4)[0]])
        env.close()
    assert returns[0] == returns[1] != returns[2]


@pytest.mark.parametrize(
    ("example", "task", "state", "actions"),
    [("quadruped_go1", "Go1JoystickFlatTerrain-v1", 48, 12), ("humanoid_g1", "G1JoystickFlatTerrain-v1", 103, 29)],
)
def test_a_start_accepts_the_robots_of_the_examples(example: str, task: str, state: int, actions: int) -> None:
    module = importlib.import_module(f"tfagents_system.examples.{example}.params")
    params = module.TrainParams(json.loads((ROOT / f"tfagents_system/examples/{example}/config.json").read_text()))
    checks = Findings()
    trial = EnvironmentTrial(params, 0, checks).run()
    assert checks.errors == [] and trial is not None
    env = params.env_ctor(seed=1, num_envs=1)
    assert env.spec.config.task_name == task.removesuffix("-v1")
    shapes = {name: space.shape for name, space in env.single_observation_space.spaces.items()}
    assert shapes["state"] == (state,) < shapes["privileged_state"]
    assert env.single_action_space.shape == (actions,)
