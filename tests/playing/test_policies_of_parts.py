"""Saved policies ask for the parts of the observation that the actor saw, and play where there are more of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.acting import action
from tfagents_system.agents.agent import make_agent
from tfagents_system.envs import specs
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.playing import export_files, play
from tfagents_system.playing.play import check_fit
from tfagents_system.policies.files import Policy, load_policy
from tfagents_system.policies.worker_policy import FixedPolicy, make_worker_policy
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.policy_export import PolicyExport

SIZES = {"lidar": 3, "mass": 1, "speed": 2}


class Robot(gymnasium.Env):
    """Random sensors; a step's reward is the action, and an episode has three.

    Args:
      parts: Of the observation.
    """

    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, *parts: str) -> None:
        box, self._parts = gymnasium.spaces.Box, parts
        self.observation_space = gymnasium.spaces.Dict({p: box(-9.0, 9.0, (SIZES[p],), np.float32) for p in parts})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._observe(), float(action[0]), self.steps == 3, False, {}

    def _observe(self) -> Any:
        """The same numbers of a part, whatever other parts there are."""
        return {
            part: np.random.default_rng([self.steps, SIZES[part]]).normal(size=SIZES[part]).astype(np.float32)
            for part in self._parts
        }


class Params(TrainParamsBase):
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)
    actor_observations = ("lidar", "speed")
    frame_stack = {"lidar": 2}  # noqa: RUF012
    action_history = 1
    normalize_observations = True

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        return Robot(*SIZES)


def environment(*parts: str) -> TrainingEnvironment:
    return TrainingEnvironment(Robot(*parts), 5, seed=0, action_history=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, RunPaths, Path]:
    """An agent, and a run with its SavedModels and a checkpoint."""
    params, env = Params({"horizon": 5}), environment(*SIZES)
    paths = RunPaths(tmp_path_factory.mktemp("run"))
    specs.save_specs(paths.specs, env.observation_spec(), env.environment_action_spec)
    tf.keras.utils.set_random_seed(2)
    seen, acted = (tensor_spec.from_spec(spec) for spec in (env.observation_spec(), env.action_spec()))
    agent = make_agent(params, seen, acted, tf.Variable(0, dtype=tf.int64))
    export = PolicyExport(paths, agent, env.actions, agent.train_step_counter, params.frame_stack)
    export.save_model()
    return agent, paths, paths.policy_checkpoints / export.save_checkpoint(0)


def test_files_ask_for_these_parts_alone(run: Any, tmp_path: Path) -> None:
    _, paths, checkpoint = run
    wanted = {"action_history", "lidar", "speed"}
    assert set(load_policy(paths.policies / "greedy_policy", "--policy").time_step_spec.observation) == wanted
    source = export_files.read_source(Params({"horizon": 5}), paths, checkpoint)
    file, difference = export_files.write(source, "numpy", tmp_path)
    description = load_policy(file, "--policy").description
    assert {leaf["name"] for leaf in description["observation"]} == wanted and difference < 1e-5
    wide = type("Wide", (Params,), {"actor_fc_layer_params": (16,)})({"horizon": 5})
    with pytest.raises(UserError, match="does not fit the params"):
        export_files.read_source(wide, paths, checkpoint)


def test_a_policy_plays_with_its_parts_and_with_all(run: Any, tmp_path: Path) -> None:
    """The real robot has no `mass`; a worker's policy and all files act alike in both environments."""
    agent, paths, checkpoint = run
    source = export_files.read_source(Params({"horizon": 5}), paths, checkpoint)
    file, _ = export_files.write(source, "numpy", tmp_path)
    worker = make_worker_policy(agent, 0, 1, Params.frame_stack, Params.actor_observations)
    returns = []
    for path in (checkpoint, file):
        policy = load_policy(path, "--policy")
        for env in (environment(*SIZES), environment("lidar", "speed")):
            check_fit(policy, env)
            returns.append(play._run_episode(env, policy, env.reset()).episode_return)
    env, called = environment(*SIZES), Policy(load_policy(checkpoint, "checkpoint"))
    fixed = FixedPolicy(load_policy(file, "SAC_EXPERT_POLICY"), env.actions)
    for act in (
        lambda step: action(worker, step, True),
        lambda step: action(fixed, step, True),
        lambda step: called(step.observation) / 2.0,
    ):
        for policy in (worker, fixed):
            policy.reset([0])
        returns.append(_episode(env, act))
    np.testing.assert_allclose(returns, returns[0], atol=1e-5)
    assert abs(returns[0]) > 0.01


def _episode(env: TrainingEnvironment, act: Any) -> float:
    time_step, total = env.reset(), 0.0
    while not time_step.is_last():
        time_step = env.step(act(time_step))
        total += float(time_step.reward)
    return total


def test_an_environment_without_one_of_the_parts_is_refused(run: Any) -> None:
    policy = load_policy(run[2], "--policy")
    with pytest.raises(UserError, match="give --params and --config of the same run"):
        check_fit(policy, environment("lidar", "mass"))
