"""Policies for environments, in workers and on disk: their own units, single frames."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.policies import policy_loader, tf_policy
from tf_agents.policies.policy_saver import PolicySaver
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tests.support.acting import action
from tests.support.frames_for_tests import recorded_envs
from tests.support.numpy_actors import VECTOR, as_after_training, build
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.history import single_frame_spec, stacked_spec
from tfagents_system.policies import weights
from tfagents_system.policies.names import checkpoint_name, iteration_of
from tfagents_system.policies.tensorflow_policy import of_single_frames
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.worker.actors import PolicyActor
from tfagents_system.worker.rollout import Rollout

FRAMES = 3
STACKED_ACTION = tensor_spec.BoundedTensorSpec((1,), tf.float32, -1.0, 1.0, "action")
WEIGHTS = np.random.default_rng(0).uniform(0.0, 1.0, (3, 4, 2 * FRAMES)).astype(np.float32)
WEIGHTS /= WEIGHTS.sum() * 255.0


def scramble(agent, seed=1):
    """Weights as after training: not small and symmetric as at the start."""
    weights.assign_weights(weights.named_variables(agent.collect_policy), as_after_training(agent, seed))


def time_step(spec, seed=0):
    rng = np.random.default_rng(seed)
    observation = tf.nest.map_structure(lambda s: rng.standard_normal(s.shape).astype(s.dtype.as_numpy_dtype), spec)
    return ts.TimeStep(np.int32(1), np.float32(0), np.float32(1), observation)


def batched(step):
    return tf.nest.map_structure(lambda value: tf.constant(np.asarray(value)[None]), step)


def test_saved_policies_act_in_the_environments_units(tmp_path, monkeypatch):
    agent = build(VECTOR, recurrent=True, normalize_observations=True)
    scramble(agent)
    train_step = agent.train_step_counter
    train_step.assign(1234)
    units = tensor_spec.BoundedTensorSpec((2,), tf.float32, [-2.0, 0.0], [2.0, 10.0], "action")
    export = PolicyExport(RunPaths(tmp_path), agent, actions_of(units), train_step)
    assert not export.has_model()
    for iteration in (6, None, 7):
        export.save_model(iteration)
        assert [iteration_of(model) for model in (tmp_path / "policies").glob("*policy")] == [iteration]
    assert export.has_model()
    scramble(agent, seed=2)
    saved = tmp_path / "policies/checkpoints/policy_checkpoint_0000001234"
    for iteration in (None, 7):
        assert export.save_checkpoint(iteration) == saved.name
        assert iteration_of(saved) == iteration
    worker = make_worker_policy(agent, seed=0)
    step = time_step(VECTOR)
    worker.reset([0])
    expected = np.array([2.0, 5.0]) * action(worker, step, True) + np.array([0.0, 5.0])

    name = checkpoint_name(1234)
    loaded = policy_loader.load(
        str(tmp_path / "policies" / "greedy_policy"), str(tmp_path / "policies/checkpoints" / name)
    )
    played = loaded._policy.action(batched(step), loaded._policy.get_initial_state(1)).action
    np.testing.assert_allclose(played[0], expected, atol=1e-5)
    assert loaded.get_train_step() == 1234

    built = []
    whole = PolicySaver.save
    monkeypatch.setattr(PolicySaver, "save", lambda self, *args: built.append(self) or whole(self, *args))
    (tmp_path / "policies/greedy_policy/notes.txt").write_text("of a user")
    scramble(agent, seed=3)
    train_step.assign(2000)
    export.save_model()
    assert not built, "a graph takes longest to build"
    export._saver.save(str(tmp_path / "whole"))
    assert contents(tmp_path / "policies/greedy_policy") == contents(tmp_path / "whole")
    again = tf.saved_model.load(str(tmp_path / "policies/greedy_policy"))
    worker.assign(weights.read_weights(weights.named_variables(agent.collect_policy)))
    worker.reset([0])
    expected = np.array([2.0, 5.0]) * action(worker, step, True) + np.array([0.0, 5.0])
    played = again.action(batched(step), again.get_initial_state(1)).action
    np.testing.assert_allclose(played[0], expected, atol=1e-5)
    assert again.get_train_step() == 2000
    shutil.rmtree(tmp_path / "policies/greedy_policy")
    export.save_model()
    assert contents(tmp_path / "policies/greedy_policy").keys() == contents(tmp_path / "whole").keys()


def contents(model: Path) -> dict[str, bytes]:
    """All that a SavedModel says, without the order of its functions: names of files, and the bytes of its weights."""
    files = {str(path.relative_to(model)): path for path in model.rglob("*") if path.is_file()}
    same = {name for name in files if not name.endswith(("saved_model.pb", "fingerprint.pb"))}
    return {name: path.read_bytes() if name in same else b"" for name, path in files.items()}


class WeightedPixels(tf_policy.TFPolicy):
    """Acts by a sum over all pixels with weights of their own; counts its steps in its state."""

    def __init__(self, observation_spec):
        super().__init__(
            ts.time_step_spec(observation_spec), STACKED_ACTION, policy_state_spec=tf.TensorSpec((), tf.int32)
        )

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


def test_workers_stack_for_each_environment(agent):
    count = 3
    envs, stacks = recorded_envs(FRAMES, count, lengths=(1, 12))
    policy = make_worker_policy(agent, seed=0, num_lanes=count, frame_stack=FRAMES)
    assert policy.inference == "tensorflow session"
    seen = []

    def observe(step):
        place = tuple(map(int, step.observation["place"]))
        seen.append((place, float(step.action[0]), expected_action(stacks[place])))

    for greedy in (False, True):
        Rollout(envs, PolicyActor(policy, greedy), observers=[observe]).episodes(12)
    assert len(seen) > 80 and {place[0] for place, *_ in seen} == set(range(count))
    np.testing.assert_allclose([action for _, action, _ in seen], [expected for *_, expected in seen], atol=1e-5)
