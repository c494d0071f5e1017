"""CrossQ: batch normalisation for greater sample efficiency and simplicity (Bhatt et al., arXiv 1902.05605)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfagents_system.agents.minibatch import Noise, Steps
from tfagents_system.agents.sac import Sac


class Crossq(Sac):
    """SAC's losses without target networks (section 3 of the paper); two critics and the actor's period 3 unless set.

    Each critic sees (s, a) and (s', a') in one pass, so that batch statistics cover both; no gradient flows through its
    values of (s', a'). Target and actor use the minimum over the critics; for the actor the critics use the moving
    statistics. Networks have batch renormalisation for this algorithm. The paper's critics are 2048 units wide, which
    is slow: `critic_joint_fc_layer_params = (2048, 2048)`.
    """

    has_targets = False

    def evaluate(
        self, steps: Steps, next_steps: Steps, next_actions: Any, noise: Noise, training: bool
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        both = joined(steps, next_steps, next_actions)
        values = [tf.split(self.values(critic, both, both.actions, training), 2) for critic in self.critics]
        predictions, next_values = zip(*values, strict=True)
        return list(predictions), self.lowest(next_values)  # `_td_targets` stops the gradient.


def joined(steps: Steps, next_steps: Steps, next_actions: Any = None) -> Steps:
    """Steps and next steps as one batch `[2 B, ...]`, with their actions if those of the next steps are known."""

    def join(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        return tf.concat([first, second], axis=0)

    time_steps = tf.nest.map_structure(join, steps.time_steps, next_steps.time_steps)
    actions = None if next_actions is None else tf.nest.map_structure(join, steps.actions, next_actions)
    return Steps(time_steps, actions)
