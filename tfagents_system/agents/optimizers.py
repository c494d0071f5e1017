"""The optimizers of critics, actor and alpha.

All are legacy Keras optimizers: SacAgent converts new ones to these and loses settings such as AdamW and weight
decay, and the legacy Adam is one fused operation per variable.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfagents_system.agents.optimizer_settings import OptimizerSettings, optimizer_settings
from tfagents_system.checks.schedules import Schedule, is_schedule
from tfagents_system.train_params_base import TrainParamsBase


def build_optimizer(
    params: TrainParamsBase, part: str, train_step: tf.Variable
) -> tf.keras.optimizers.legacy.Optimizer:
    """The optimizer of one part with its learning rate. Where that is a schedule, `scheduled_rate` is its variable.

    Args:
      params: `<part>_optimizer` and `<part>_learning_rate` are used.
      part: `critic`, `actor` or `alpha`.
      train_step: The agent's counter of updates, on which learning rate schedules depend.
    """
    settings = optimizer_settings(params, part)
    given = getattr(params, f"{part}_learning_rate")
    if is_schedule(given):
        variable = tf.Variable(Schedule.of(given).value(0, 0, 0), trainable=False, name=f"{part}_learning_rate")
        optimizer = _optimizer(settings, lambda: variable)
        optimizer.scheduled_rate = variable
        return optimizer
    return _optimizer(settings, _learning_rate(settings, given, train_step))


def _optimizer(settings: OptimizerSettings, rate: Any) -> tf.keras.optimizers.legacy.Optimizer:
    clipping = {"global_clipnorm": settings.global_clipnorm}
    if settings.name == "sgd":
        momentum = _not_saved(settings.momentum) if settings.momentum else 0.0
        return Sgd(rate, momentum, settings.weight_decay, **clipping)
    moments = {
        "beta_1": _not_saved(settings.beta_1),
        "beta_2": _not_saved(settings.beta_2),
        "epsilon": settings.epsilon,
    }
    if settings.name == "radam":
        return RAdam(rate, settings.weight_decay, **moments, **clipping)
    if settings.name == "adamw":
        return AdamW(rate, settings.weight_decay, **moments, **clipping)
    return Adam(rate, settings.weight_decay, **moments, **clipping)


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


class RAdam(tf.keras.optimizers.legacy.Adam):
    """Rectified Adam (Liu et al., arXiv 1908.03265, algorithm 2) with AdamW's decoupled weight decay.

    With rho = 2 / (1 - beta_2) - 1 and rho_t = rho - 2 t beta_2^t / (1 - beta_2^t), Adam's step is multiplied by
    r_t = sqrt((rho_t - 4) (rho_t - 2) rho / ((rho - 4) (rho - 2) rho_t)). While rho_t is at most 5, the variance of the
    second moment is too large, and the step is that of the first one alone: rate * m / (1 - beta_1^t). The paper's text
    has 4 there; its authors' code and PyTorch's have 5.
    """

    _TRACTABLE = 5.0

    def __init__(self, rate: Any, weight_decay: float, **options: Any) -> None:
        super().__init__(rate, name="RAdam", **options)
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None) -> tf.Operation:
        of_variable = var.device, var.dtype.base_dtype
        state = (apply_state or {}).get(of_variable) or self._fallback_apply_state(*of_variable)
        rate, beta_1, beta_2 = state["lr_t"], state["beta_1_t"], state["beta_2_t"]
        power_1, power_2 = state["beta_1_power"], state["beta_2_power"]
        t = tf.cast(self.iterations + 1, tf.float32)
        most = 2.0 / (1.0 - beta_2) - 1.0
        rho = most - 2.0 * t * power_2 / (1.0 - power_2)
        is_tractable = rho > self._TRACTABLE
        squared = (rho - 4.0) * (rho - 2.0) * most / ((most - 4.0) * (most - 2.0) * rho)
        rectified = tf.where(is_tractable, rate * tf.sqrt(tf.maximum(squared, 0.0)), 0.0)
        m = self.get_slot(var, "m")
        with tf.control_dependencies(_steps(_decay(var, rate * self._weight_decay) if self._weight_decay else None)):
            step = tf.raw_ops.ResourceApplyAdam(
                var=var.handle,
                m=m.handle,
                v=self.get_slot(var, "v").handle,
                beta1_power=power_1,
                beta2_power=power_2,
                lr=rectified,
                beta1=beta_1,
                beta2=beta_2,
                epsilon=state["epsilon"],
                grad=grad,
                use_locking=self._use_locking,
            )
        # A product with zero would cost a pass over the weights in each update of the run.
        with tf.control_dependencies(_steps(step)):
            tf.cond(
                is_tractable,
                lambda: tf.constant(False),
                lambda: _moved(var, rate / (1.0 - power_1), m.read_value()),
            )
        return step


def _steps(step: tf.Operation | None) -> list[tf.Operation]:
    """What must have been done before: outside of a graph it has been, and there is no operation."""
    return [] if step is None else [step]


def _decay(variable: tf.Variable, share: tf.Tensor) -> tf.Operation:
    """Takes a share of its weights off a variable."""
    return _move(variable, share, variable.read_value())


def _moved(variable: tf.Variable, rate: tf.Tensor, direction: tf.Tensor) -> tf.Tensor:
    """True once it has."""
    step = _move(variable, rate, direction)
    with tf.control_dependencies(_steps(step)):
        return tf.constant(True)


def _move(variable: tf.Variable, rate: tf.Tensor, direction: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=direction)


class Sgd(tf.keras.optimizers.legacy.SGD):
    """velocity <- momentum * velocity - rate * gradient, theta <- theta + velocity, with an L2 term as in `Adam`."""

    def __init__(self, rate: Any, momentum: Any, weight_decay: float, **options: Any) -> None:
        super().__init__(rate, momentum, name="SGD", **options)
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None) -> tf.Operation:
        return super()._resource_apply_dense(_with_l2_term(grad, var, self._weight_decay), var, apply_state)


class ScheduleByTrainStep(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that moves from one value to another over a number of train steps, and stays there.

    Keras passes the optimizer's own step count, which is lower than the run's for an actor that is not updated every
    time: this argument is ignored.

    Args:
      settings: Shape, end and length.
      initial: Rate at train step 0.
      train_step: The run's counter of updates.
    """

    def __init__(self, settings: OptimizerSettings, initial: float, train_step: tf.Variable) -> None:
        self._settings = settings
        self._initial = initial
        self._train_step = train_step

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """The rate now, a float32 scalar."""
        del step
        progress = tf.minimum(tf.cast(self._train_step, tf.float32) / float(self._settings.schedule_steps), 1.0)
        if self._settings.schedule == "cosine":
            remaining = 0.5 * (1.0 + tf.cos(math.pi * progress))
        else:
            remaining = 1.0 - progress
        final = self._settings.final_learning_rate
        return final + (self._initial - final) * remaining

    def get_config(self) -> dict[str, Any]:
        raise TypeError("a schedule by train step belongs to its run: build it from TrainParams")


def _learning_rate(settings: OptimizerSettings, initial: float, train_step: tf.Variable) -> Any:
    if settings.schedule == "constant":
        return _not_saved(initial)
    return ScheduleByTrainStep(settings, initial, train_step)


def _not_saved(number: float) -> Callable[[], float]:
    """A number outside checkpoints: Keras would save it, and a resumed run would keep its original value."""
    return lambda: number


def _with_l2_term(gradient: tf.Tensor, variable: tf.Variable, weight_decay: float) -> tf.Tensor:
    return gradient + weight_decay * variable if weight_decay else gradient
