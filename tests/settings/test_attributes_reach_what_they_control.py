"""Attributes of TrainParams reach what they control: the algorithms' own defaults, drawing, sequences, rewards."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from tests.support.fakes import agent_of
from tests.support.fed_builder import FedEpisode
from tfagents_system.agents.layers import BatchRenormalization, Dropout
from tfagents_system.replay.server import draw_settings
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import Layout
from tfagents_system.worker.rollout import segment_builder

OBSERVATION = tf.TensorSpec((3,), tf.float32, "observation")
ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")
LAYOUT = Layout.from_specs(np.zeros(3, np.float32), np.zeros(2, np.float32))


class Params(TrainParamsBase):
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None, **kwargs):
        raise AssertionError("not needed")


def params_with(**attributes):
    params = Params({"horizon": 50})
    vars(params).update(attributes)
    return params


def layers_in(networks, kind):
    return [[layer for layer in network.submodules if isinstance(layer, kind)] for network in networks]


@pytest.mark.parametrize("algorithm", ["sac", "redq", "droq", "tqc", "crossq"])
def test_an_algorithm_has_the_networks_and_the_adam_of_its_paper(algorithm):
    agent = agent_of(Params, OBSERVATION, ACTION, algorithm=algorithm)
    critics = list(agent.critics)
    assert len(critics) == {"redq": 10, "tqc": 5}.get(algorithm, 2)
    outputs = critics[0]((tf.zeros((1, 3)), tf.zeros((1, 2))), step_type=tf.ones(1, tf.int32))[0].shape
    assert outputs == ((1, 25) if algorithm == "tqc" else (1,))
    rates = [[layer.rate for layer in layers] for layers in layers_in(critics, Dropout)]
    assert rates == [[0.01] if algorithm == "droq" else []] * len(critics)
    for kind, wanted in ((tf.keras.layers.LayerNormalization, "droq"), (BatchRenormalization, "crossq")):
        assert all(bool(layers) == (algorithm == wanted) for layers in layers_in(critics, kind)), kind
    assert bool(layers_in([agent.actor], BatchRenormalization)[0]) == (algorithm == "crossq")
    betas = [float(each._get_hyper("beta_1")) for each in (agent.critic_optimizer, agent.actor_optimizer)]
    assert betas == pytest.approx([0.5 if algorithm == "crossq" else 0.9] * 2)
    assert float(agent.alpha_optimizer._get_hyper("beta_1")) == pytest.approx(0.9)


def test_drawing_follows_the_attributes():
    params = params_with(n_step=3, discount=0.9, frame_stack=2, batch_size=32, validation_share=0.1, num_iter=1)
    settings = draw_settings(params, LAYOUT, 7)
    found = (settings.form.n_step, settings.discount, settings.frame_stack, settings.batch_size, settings.seed)
    assert found == (3, 0.9, 2, 32, 7)
    assert settings.held_out_minibatches > 0 and settings.form.sequence_length is None
    assert draw_settings(params_with(), LAYOUT, 7).held_out_minibatches == 0


def test_workers_cut_episodes_for_sequences_and_stacked_frames():
    images = Layout.from_specs(np.zeros((1024, 1024, 1), np.uint8), np.zeros(2, np.float32))
    assert images.max_segment_steps(None) == 15
    for attributes, history, lead in (
        ({}, [0, 0], [0, 0]),
        ({"frame_stack": 3}, [0, 2], [0, 0]),
        ({"n_step": 4}, [0, 0], [0, 3]),
        ({"recurrent": {"sequence_length": 2, "burn_in": 1}}, [0, 0], [0, 3]),
    ):
        sent = []
        builder = segment_builder(params_with(**attributes), images, sent.append, held_out=True)
        image = np.zeros((1024, 1024, 1), np.uint8)
        fed = FedEpisode(builder, time_step.restart(image))
        for _ in range(16):
            fed.add(np.zeros(2, np.float32), time_step.transition(image, 0.0))
        fed.finish(end_of_iteration=True)
        assert [segment.num_steps for segment in sent] == [15, 1]
        assert [segment.history for segment in sent] == history
        assert [segment.lead for segment in sent] == lead
        assert all(segment.held_out for segment in sent)
