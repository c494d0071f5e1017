"""The entropy coefficient alpha: its target entropy, and how it stays fixed."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfagents_system.agents.optimizers import build_optimizer
from tfagents_system.train_params_base import TrainParamsBase


class FrozenOptimizer(tf.keras.optimizers.legacy.SGD):
    """The optimizer of a fixed alpha, with steps of 0: TF-Agents' own agents require an optimizer."""

    def __init__(self) -> None:
        super().__init__(0.0, name="FrozenOptimizer")


def alpha_optimizer(params: TrainParamsBase) -> tf.keras.optimizers.legacy.Optimizer:
    """The optimizer of log(alpha); `FrozenOptimizer` if it is not learned."""
    return build_optimizer(params, "alpha") if params.learn_entropy_coef else FrozenOptimizer()


def set_fixed_alpha(agent: Any, params: TrainParamsBase) -> None:
    """Sets a restored agent's alpha to that of its params if it is not learned, whatever the checkpoint had."""
    if isinstance(getattr(agent, "_alpha_optimizer", None), FrozenOptimizer):
        agent._log_alpha.assign(params.sac_log_alpha)


def target_entropy(params: TrainParamsBase, action_spec: Any) -> float:
    """In nats; -dim(action) unless set by the params (Haarnoja et al., arXiv 1812.05905, appendix D)."""
    if params.target_entropy is not None:
        return float(params.target_entropy)
    return -float(sum(spec.shape.num_elements() for spec in tf.nest.flatten(action_spec)))
