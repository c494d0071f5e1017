"""The optimizers of critics, actor and alpha.

All are legacy Keras optimizers: SacAgent converts new ones to these and loses settings such as AdamW and weight
decay, and the legacy Adam is one fused operation per variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfagents_system.agents import algorithms
from tfagents_system.agents.algorithms import optimizer_settings
from tfagents_system.checks.schedules import Schedule, is_schedule
from tfagents_system.train_params_base import TrainParamsBase


def build_optimizer(params: TrainParamsBase, part: str) -> tf.keras.optimizers.legacy.Optimizer:
    """The optimizer of one part with its learning rate. Where that is a schedule, `scheduled_rate` is its variable.

    Args:
      params: `<part>_optimizer` and `<part>_learning_rate` are used.
      part: `critic`, `actor` or `alpha`.
    """
    settings, rate = optimizer_settings(params, part), algorithms.value(params, f"{part}_learning_rate")
    if not is_schedule(rate):
        return _optimizer(settings, _not_saved(rate))
    variable = tf.Variable(Schedule.of(rate).value(0, 0, 0), trainable=False, name=f"{part}_learning_rate")
    optimizer = _optimizer(settings, lambda: variable)
    optimizer.scheduled_rate = variable
    return optimizer


def _optimizer(settings: Mapping[str, Any], rate: Any) -> tf.keras.optimizers.legacy.Optimizer:
    decay, clipping = settings["weight_decay"], {"global_clipnorm": settings["global_clipnorm"]}
    if settings["name"] == "sgd":
        momentum = settings["momentum"]
        return Sgd(rate, _not_saved(momentum) if momentum else 0.0, decay, **clipping)
    moments = {
        "beta_1": _not_saved(settings["beta_1"]),
        "beta_2": _not_saved(settings["beta_2"]),
        "epsilon": settings["epsilon"],
    }
    return (AdamW if settings["name"] == "adamw" else Adam)(rate, decay, **moments, **clipping)


class Adam(tf.keras.optimizers.legacy.Adam):
    """Adam (Kingma and Ba, arXiv 1412.6980) with an L2 term: `weight_decay` times the weights join the gradient.

    theta <- theta - rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon), the form before the paper's
    section 2.1.
    """

    def __init__(self, rate: Any, weight_decay: float = 0.0, **options: Any) -> None:
        super().__init__(rate, name="Adam", **options)
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None) -> tf.Operation:
        return super()._resource_apply_dense(_with_l2_term(grad, var, self._weight_decay), var, apply_state)


class AdamW(tf.keras.optimizers.legacy.Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2).

    theta <- theta - rate * (Adam's direction + weight_decay * theta), with the scheduled rate in both terms. All
    variables decay, biases among them.
    """

    def __init__(self, rate: Any, weight_decay: float, **options: Any) -> None:
        super().__init__(rate, name="AdamW", **options)
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None) -> tf.Operation:
        of_variable = var.device, var.dtype.base_dtype
        state = (apply_state or {}).get(of_variable) or self._fallback_apply_state(*of_variable)
        rate = state["lr_t"]
        # Adam's direction does not depend on the weights, so decaying first decays the weights before the step.
        with tf.control_dependencies(_steps(_decay(var, rate * self._weight_decay))):
            return super()._resource_apply_dense(grad, var, apply_state)


def _steps(step: tf.Operation | None) -> list[tf.Operation]:
    """What must have been done before: outside of a graph it has been, and there is no operation."""
    return [] if step is None else [step]


def _decay(variable: tf.Variable, share: tf.Tensor) -> tf.Operation:
    """Takes a share of its weights off a variable."""
    return _move(variable, share, variable.read_value())


def _move(variable: tf.Variable, rate: tf.Tensor, direction: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=direction)


class Sgd(tf.keras.optimizers.legacy.SGD):
    """velocity <- momentum * velocity - rate * gradient, theta <- theta + velocity, with an L2 term as in `Adam`."""

    def __init__(self, rate: Any, momentum: Any, weight_decay: float, **options: Any) -> None:
        super().__init__(rate, momentum, name="SGD", **options)
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None) -> tf.Operation:
        return super()._resource_apply_dense(_with_l2_term(grad, var, self._weight_decay), var, apply_state)


def _not_saved(number: float) -> Callable[[], float]:
    """A number outside checkpoints: Keras would save it, and a resumed run would keep its original value."""
    return lambda: number


def _with_l2_term(gradient: tf.Tensor, variable: tf.Variable, weight_decay: float) -> tf.Tensor:
    return gradient + weight_decay * variable if weight_decay else gradient
