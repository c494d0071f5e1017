"""What no machine can hold is told from shapes alone, before a network is built."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs.tensor_spec import BoundedTensorSpec

from tests.support.fakes import FakeParams
from tfagents_system.agents.encoder import ImageEncoder, convolutions
from tfagents_system.checks.findings import Findings
from tfagents_system.launch import environment_checks
from tfagents_system.launch.environment_checks import EnvironmentTrial
from tfagents_system.launch.spec_checks import _encoded, too_large
from tfagents_system.transport.segments import run_layout

WIDE = {"batch_size": 1, "critic_joint_fc_layer_params": (256, 256)}
ACTION = BoundedTensorSpec((6,), tf.float32, -1.0, 1.0, "action")


def camera(height: int, width: int) -> dict[str, tf.TensorSpec]:
    return {"front": tf.TensorSpec((height, width, 3), tf.uint8, "observation/front")}


def vector(size: int) -> tf.TensorSpec:
    return tf.TensorSpec((size,), tf.float32, "observation")


def findings(spec: Any, attributes: dict[str, Any]) -> list[str]:
    params = FakeParams({"horizon": 100})
    vars(params).update(attributes)
    return too_large(params, spec, run_layout(params, spec, ACTION), (16 * 2**30, "of memory"))


@pytest.mark.parametrize(
    ("spec", "attributes", "words"),
    [
        (
            camera(480, 640),
            {},
            r'233 x 313 x 32 features of "front" \(480, 640, 3\), .* resize it to 96 x 128 in env_ctor',
        ),
        (camera(1080, 1920), {"algorithm": "dqn"}, "resize it to 96 x 171 .*SmallPictures"),
        # (100,000^2 + 3 x 100,000) weights of 16 bytes, and the critics' and a minibatch below a MiB.
        (vector(3), {"actor_fc_layer_params": (100_000,) * 2}, r"149 GiB .*lower actor_fc_layer_params=\(100000"),
        (vector(3), {"critic_joint_fc_layer_params": (60_000,) * 2}, "lower critic_joint_fc_layer_params"),
        (vector(20_000_000), WIDE, "lower critic_joint_fc_layer_params=.*or make observations smaller"),
        (camera(84, 84), {"batch_size": 1_000_000}, "lower batch_size=1000000, which takes"),
        (vector(100_000), {"batch_size": 100_000}, "lower batch_size=100000, which takes 74.5 GiB"),
    ],
)
def test_it_is_refused_with_what_to_lower(spec: Any, attributes: dict[str, Any], words: str) -> None:
    (finding,) = findings(spec, attributes)
    assert re.search(words, finding), finding


@pytest.mark.parametrize(
    ("spec", "attributes"),
    [
        (camera(84, 84), {}),
        (camera(96, 128), {"batch_size": 64}),  # What is proposed.
        (camera(480, 640), {"image_encoder_layers": ((32, 8, 4), (32, 4, 2), (32, 3, 2)), "batch_size": 16}),
        (vector(100_000), {}),
        (vector(3), {"actor_fc_layer_params": (2048,) * 2, "critic_joint_fc_layer_params": (2048,) * 2}),
    ],
)
def test_what_fits_is_no_finding(spec: Any, attributes: dict[str, Any]) -> None:
    assert findings(spec, attributes) == []


def test_features_are_those_of_the_encoder() -> None:
    params, spec = FakeParams({"horizon": 100}), camera(97, 130)
    encoded, _ = ImageEncoder(spec, convolutions(params))({"front": np.zeros((1, 97, 130, 3), np.uint8)})
    assert tuple(encoded["front"].shape[1:]) in {
        _encoded(params, (97, 130, 3)),
        (np.prod(_encoded(params, (97, 130, 3))),),
    }


def test_the_trial_tells_before_it_builds_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    class Robot(gymnasium.Env):
        observation_space = gymnasium.spaces.Dict({"front": gymnasium.spaces.Box(0, 255, (480, 640, 3), np.uint8)})
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (6,))

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return {"front": np.zeros((480, 640, 3), np.uint8)}, {}

        def step(self, action: Any) -> Any:
            return self.reset()[0], 0.0, False, False, {}

    monkeypatch.setattr(environment_checks, "make_agent", lambda *_: pytest.fail("an agent was built"))
    hooks = {"env_ctor": lambda self, **_: Robot(), "num_eval_episodes": 0}
    params, told = type("TrainParams", (FakeParams,), hooks)({"horizon": 10}), Findings()
    EnvironmentTrial(params, 0, told).run()
    assert len(told.errors) == 1 and "resize it to 96 x 128" in told.errors[0]
