"""CrossQ: batch normalisation for greater sample efficiency and simplicity (Bhatt et al., arXiv 1902.05605)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfagents_system.agents.ensemble import EnsembleAgent
from tfagents_system.agents.fused_update import FusedUpdate, lowest
from tfagents_system.agents.update_parts import Steps
from tfagents_system.train_params_base import TrainParamsBase


class CrossqUpdate(FusedUpdate):
    """SAC's losses without target networks (section 3 of the paper).

    Each critic sees (s, a) and (s', a') in one pass, so that batch statistics cover both; no gradient flows through its
    values of (s', a'). Target and actor use the minimum over the critics; for the actor the critics use the moving
    statistics.
    """

    def _evaluate(self, steps: Steps, next_steps: Steps, next_actions: Any, training: bool) -> tuple[list[Any], Any]:
        joined = tf.nest.map_structure(_join, steps.time_steps, next_steps.time_steps)
        both = Steps(joined, None)
        actions = tf.nest.map_structure(_join, steps.actions, next_actions)
        values = [tf.split(self._values(critic, both, actions, training), 2) for critic in self._parts.critics]
        predictions, next_values = zip(*values, strict=True)
        return list(predictions), lowest(next_values)  # `_td_targets` stops the gradient.


def _join(here: tf.Tensor, there: tf.Tensor) -> tf.Tensor:
    return tf.concat([here, there], axis=0)


def build_agent(
    params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable
) -> EnsembleAgent:
    """CrossQ; two critics and the actor's period 3 unless params say otherwise.

    `networks` builds actor and critics with batch renormalisation for this algorithm. The paper's critics are 2048
    units wide, which is slow: `critic_joint_fc_layer_params = (2048, 2048)`.
    """
    return EnsembleAgent(params, time_step_spec, action_spec, train_step, CrossqUpdate, has_targets=False)
