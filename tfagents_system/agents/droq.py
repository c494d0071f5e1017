"""DroQ: dropout Q-functions for doubly efficient reinforcement learning (Hiraoka et al., arXiv 2110.02034)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfagents_system.agents import redq
from tfagents_system.agents.ensemble import EnsembleAgent
from tfagents_system.train_params_base import TrainParamsBase


def build_agent(
    params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable
) -> EnsembleAgent:
    """Algorithm 2 of the paper: REDQ's update with N = M = 2; the actor's period, see `algorithms`.

    What stands for the large ensemble is in the critics, which `networks` builds for this algorithm: dropout and layer
    normalisation behind each hidden product. Units are dropped in targets and in the actor's loss as well.
    """
    return redq.build_agent(params, time_step_spec, action_spec, train_step)
