"""Policies of stacked frames take single ones, in workers and on disk, and see gymnasium's stacks."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.policies import policy_loader, tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tests.support.frames_for_tests import recorded_envs
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.history import single_frame_spec, stacked_spec
from tfagents_system.playing import play
from tfagents_system.playing.played_environment import check_fit
from tfagents_system.policies.frame_stack_policy import of_single_frames
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.worker.actors import PolicyActor
from tfagents_system.worker.rollout import Rollout

FRAMES = 3
ACTION = tensor_spec.BoundedTensorSpec((1,), tf.float32, -1.0, 1.0, "action")
WEIGHTS = np.random.default_rng(0).uniform(0.0, 1.0, (3, 4, 2 * FRAMES)).astype(np.float32)
WEIGHTS /= WEIGHTS.sum() * 255.0


class WeightedPixels(tf_policy.TFPolicy):
    """Acts by a sum over all pixels with weights of their own; counts its steps in its state."""

    def __init__(self, observation_spec):
        super().__init__(ts.time_step_spec(observation_spec), ACTION, policy_state_spec=tf.TensorSpec((), tf.int32))

    def _variables(self):
        return []

    def _distribution(self, time_step, policy_state):
        pixels = tf.cast(time_step.observation["camera"], tf.float32)
        action = tf.reduce_sum(pixels * WEIGHTS, [1, 2, 3])[:, None]
        return policy_step.PolicyStep(tfp.distributions.Deterministic(action), policy_state + 1)


def expected_action(stack):
    return float((stack.astype(np.float64) * WEIGHTS).sum())


@pytest.fixture(scope="module")
def agent():
    envs, _ = recorded_envs(FRAMES)
    spec = tf.nest.map_structure(tensor_spec.from_spec, envs[0].observation_spec())
    policy = WeightedPixels(stacked_spec(spec, FRAMES))
    return SimpleNamespace(collect_policy=policy, policy=policy)


def test_specs_of_stacked_and_of_single_frames_are_each_others_inverse(agent):
    stacked = agent.policy.time_step_spec.observation
    assert tuple(stacked["camera"].shape) == (3, 4, 6) and tuple(stacked["place"].shape) == (3,)
    assert tuple(single_frame_spec(stacked, FRAMES)["camera"].shape) == (3, 4, 2)
    assert of_single_frames(agent.policy, 1) is agent.policy


@pytest.mark.parametrize("count", [1, 3])
def test_workers_stack_for_each_environment(agent, count):
    envs, stacks = recorded_envs(FRAMES, count, lengths=(1, 12))
    policy = make_worker_policy(agent, seed=0, num_envs=count, frame_stack=FRAMES)
    assert policy.inference == "tensorflow session"
    seen = []

    def observe(step):
        place = tuple(map(int, step.observation["place"]))
        seen.append((place, float(step.action[0]), expected_action(stacks[place])))

    for greedy in (False, True):
        Rollout(envs, PolicyActor(policy, greedy), observers=[observe]).episodes(12)
    assert len(seen) > 80 and {place[0] for place, *_ in seen} == set(range(count))
    np.testing.assert_allclose([action for _, action, _ in seen], [expected for *_, expected in seen], atol=1e-5)
    policy.close()


def test_policies_on_disk_take_the_environments_own_observations(agent, tmp_path):
    units = tensor_spec.BoundedTensorSpec((1,), tf.float32, -1.0, 1.0, "action")
    export = PolicyExport(RunPaths(tmp_path), agent, actions_of(units), tf.Variable(7, dtype=tf.int64), FRAMES)
    export.save_models()
    policy = policy_loader.load(str(tmp_path / "policies" / "greedy_policy"))
    (env,), stacks = recorded_envs(FRAMES, lengths=(5, 12))
    check_fit(policy, env)
    actions = []
    step_env = env.step_in_environment_units

    def step(action):
        actions.append(float(action[0]))
        return step_env(action)

    env.step_in_environment_units = step
    lengths = [play._run_episode(env, policy, env.reset()).length for _ in range(3)]
    places = [(0, episode, k) for episode, length in enumerate(lengths) for k in range(length)]
    np.testing.assert_allclose(actions, [expected_action(stacks[place]) for place in places], atol=1e-5)
