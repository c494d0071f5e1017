"""A worker builds the actor alone, and acts as the trainer's agent does."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.acting import action
from tests.support.fakes import FakeParams, agent_of
from tfagents_system.agents.agent import Acting, make_worker_agent
from tfagents_system.policies import weights
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.train_params_base import TrainParamsBase

VECTOR = tf.TensorSpec((3,), tf.float32, "observation")
IMAGES = {"camera": tensor_spec.BoundedTensorSpec((36, 36, 3), tf.uint8, 0, 255, "camera"), "speed": VECTOR}
ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")


class Params(FakeParams):
    actor_fc_layer_params = (16, 8)
    critic_joint_fc_layer_params = (8,)
    image_encoder_layers = (4, 4)


def params_of(**attributes):
    params = Params({"horizon": 10})
    vars(params).update(attributes)
    return params


def observation_of(spec, rng):
    def values(leaf):
        if leaf.dtype == tf.uint8:
            return rng.integers(0, 256, leaf.shape).astype(np.uint8)
        return rng.standard_normal(leaf.shape).astype(np.float32)

    return tf.nest.map_structure(values, spec)


@pytest.mark.parametrize(
    ("spec", "attributes"),
    [
        (VECTOR, {"recurrent": {"lstm_units": 4}, "normalize_observations": True}),
        (IMAGES, {"algorithm": "redq", "num_critics": 3}),
    ],
)
def test_the_trainers_weights_fit_and_give_the_same_actions(spec, attributes):
    agent = agent_of(Params, spec, ACTION, **attributes)
    worker = make_worker_agent(params_of(**attributes), ts.time_step_spec(spec), ACTION)
    assert isinstance(worker, Acting)
    variables = weights.named_variables(agent.collect_policy)
    rng = np.random.default_rng(1)
    for variable in variables.values():
        if variable.dtype.is_floating:
            variable.assign(np.abs(rng.standard_normal(variable.shape)) * 0.3)
    sent = weights.from_arrays(weights.to_arrays(weights.read_weights(variables)))
    here, there = make_worker_policy(worker, seed=3), make_worker_policy(agent, seed=3)
    assert here.inference == there.inference
    for policy in (here, there):
        policy.assign(sent)
        policy.reset([0])
    for step_type in (0, 1):
        step = ts.TimeStep(np.int32(step_type), np.float32(0), np.float32(1), observation_of(spec, rng))
        np.testing.assert_allclose(action(here, step, True), action(there, step, True), atol=1e-6)


def test_no_critics_targets_and_optimizers_are_built():
    params = params_of(algorithm="redq", num_critics=10)

    def fail(*args):
        raise AssertionError("a worker needs no critic")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainParamsBase, "critic_ctor", fail)
        patch.setattr("tfagents_system.agents.agent.build_optimizer", fail)
        worker = make_worker_agent(params, ts.time_step_spec(VECTOR), ACTION)
    assert {variable.shape.num_elements() for variable in worker.policy.variables()} <= {48, 16, 128, 8, 32, 4, 2}


@pytest.mark.parametrize("hook", ["agent_ctor", "critic_ctor"])
def test_where_the_users_hooks_build_more_than_the_actor_the_whole_agent_is_built(hook):
    own = type("Own", (Params,), {hook: lambda self, *args: getattr(Params, hook)(self, *args)})
    worker = make_worker_agent(own({"horizon": 10}), ts.time_step_spec(VECTOR), ACTION)
    assert isinstance(worker, tf_agent.TFAgent)
