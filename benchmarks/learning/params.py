"""Any Gymnasium environment, trained with any attributes, for the learning curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium

from benchmarks.learning.tasks import PENDULUM_PIXELS
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    """Keys of the configuration: `environment`, `attributes` of TrainParams by name, and `initializer`.

    Under SAC_ENV_PYTHON it is imported without TensorFlow.

    `bfloat16` is used on every CPU, also where it is the slower one: what counts is what is learned, not how fast.
    """

    checkpoint_period_iters = 1_000_000

    def __init__(self, env_config: Mapping[str, Any], compute_config: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_config, compute_config)
        for name, value in env_config["attributes"].items():
            setattr(self, name, value)
        if env_config.get("initializer"):
            _draw_weights(env_config["initializer"])
        if self.matmul_precision == "bfloat16":
            from tfagents_system.agents import block_update

            block_update.bfloat16_speedup = lambda: math.inf

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> gymnasium.Env:
        del seed
        if self.env_config["environment"] == PENDULUM_PIXELS:
            from tfagents_system.examples.pendulum_pixels.params import CameraView

            return CameraView(gymnasium.make("Pendulum-v1", *args, **{**kwargs, "render_mode": "rgb_array"}))
        return gymnasium.make(self.env_config["environment"], *args, **kwargs)


def _draw_weights(initializer: str) -> None:
    """SAC begins with weights by one of Keras' initializers, in the last layers, too."""
    import tensorflow as tf

    from tfagents_system.agents.sac import Sac

    make, arguments = Sac.__init__, {"gain": math.sqrt(2.0)} if initializer == "Orthogonal" else {}

    def make_with_other_weights(agent: Sac, *args: Any) -> None:
        make(agent, *args)
        for variable in (*agent.actor_variables, *agent.critic_variables):
            if variable.shape.rank == 2:
                variable.assign(getattr(tf.keras.initializers, initializer)(**arguments)(variable.shape))
        agent.initialize()

    Sac.__init__ = make_with_other_weights  # type: ignore[assignment, method-assign]
