"""XQC: well-conditioned optimization accelerates deep reinforcement learning (Palenicek et al., arXiv 2509.25174)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfagents_system.agents.agent import Optimizer
from tfagents_system.agents.crossq import Crossq, joined
from tfagents_system.agents.layers import BatchNormalization
from tfagents_system.agents.minibatch import Noise, Steps
from tfagents_system.train_params_base import TrainParamsBase


class Xqc(Crossq):
    """CrossQ's joint pass with categories, target networks and weights of norm 1.

    Critics see (s, a) and (s', a') in one pass; the loss is of (s, a), and its gradient flows through the batch
    statistics into both. Targets see the same batch, with its statistics and never with moving ones. After each step of
    an optimizer, and before the first, the weights into each unit are divided by their norm.

    Two critics; a target is the distribution of the critic with the lower mean; actor and alpha step in every third
    update unless params say otherwise. Here the rates of actor and alpha fall as that of the critics does; in the
    authors' code they fall with their own steps.
    """

    has_targets, copies_statistics = True, False
    critic_loss_weight = 1.0

    def __init__(self, params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable) -> None:
        super().__init__(params, time_step_spec, action_spec, train_step)
        for target in self.targets:
            for layer in target.submodules:
                if isinstance(layer, BatchNormalization):
                    layer.momentum = 1.0  # Its moving statistics are not used, and stay.
        for layer in self._layers:
            self.project(layer)
        self.initialize()  # The targets are as the critics again.

    @functools.cached_property
    def _layers(self) -> list[Any]:
        return [layer for network in (*self.critics, self.actor) for layer in network.submodules if _is_layer(layer)]

    def project(self, layer: Any) -> None:
        """Gives the weights of a layer their norm: of a linear one each column 1."""
        if isinstance(layer, tf.keras.layers.Dense):
            layer.kernel.assign(tf.math.l2_normalize(layer.kernel, axis=0))

    def apply(self, gradients: Sequence[Any], variables: Sequence[tf.Variable], optimizer: Optimizer) -> None:
        super().apply(gradients, variables, optimizer)
        stepped = {variable.ref() for variable in variables}
        for layer in self._layers:
            if layer.trainable_variables[0].ref() in stepped:
                self.project(layer)

    def evaluate(
        self, steps: Steps, next_steps: Steps, next_actions: Any, noise: Noise, training: bool
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        both = joined(steps, next_steps, next_actions)
        predictions = [self.values(critic, both, both.actions, training, half=0) for critic in self.critics]
        next_values = [self.values(target, both, both.actions, training=True, half=1) for target in self.targets]
        return predictions, self.lowest(next_values)


def _is_layer(module: Any) -> bool:
    return isinstance(module, tf.keras.layers.Layer) and bool(module.trainable_variables) and not module.submodules
