"""Plain SAC: TF-Agents' SacAgent, built from TrainParams with defaults that learn."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.agents.sac.sac_agent import SacAgent

from tfagents_system.agents import encoder, entropy
from tfagents_system.agents.behaviour_cloning import cloning_weight
from tfagents_system.agents.ensemble import EnsembleAgent, build_critics
from tfagents_system.agents.fused_update import FusedUpdate
from tfagents_system.agents.optimizers import build_optimizer
from tfagents_system.checks.schedules import initial_value
from tfagents_system.train_params_base import TrainParamsBase


def build_agent(
    params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable
) -> SacAgent | EnsembleAgent:
    """Builds SAC (Haarnoja et al., arXiv 1812.05905), with a learned or fixed entropy coefficient.

    TF-Agents' own defaults differ from the paper: discount 1, target entropy -dim/2, hard target updates. It supports
    neither an image encoder nor an actor that sees less than the critics: an ensemble of two critics, which has the
    same losses, takes its place there.
    """
    observation_spec = time_step_spec.observation
    if encoder.sees_images(params, observation_spec) or params.actor_observations is not None:
        return EnsembleAgent(params, time_step_spec, action_spec, train_step, FusedUpdate)
    critic_1, critic_2 = build_critics(params, observation_spec, action_spec)
    agent = SacAgent(
        time_step_spec,
        action_spec,
        actor_network=params.actor_ctor(observation_spec, action_spec),
        critic_network=critic_1,
        critic_network_2=critic_2,
        actor_optimizer=build_optimizer(params, "actor"),
        critic_optimizer=build_optimizer(params, "critic"),
        alpha_optimizer=entropy.alpha_optimizer(params),
        target_update_tau=params.target_update_tau,
        target_update_period=params.target_update_period,
        gamma=initial_value(params.discount),
        initial_log_alpha=params.sac_log_alpha,
        target_entropy=entropy.target_entropy(params, action_spec),
        gradient_clipping=params.gradient_clipping,
        train_step_counter=train_step,
    )
    agent.initialize()
    agent._cloning_weight = cloning_weight(params)  # See _parts_of_sac_agent.
    return agent
