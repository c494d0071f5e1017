"""The agent as a run trains it, and whether it can be trained as TrainParams require."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent

from tfagents_system.agents.agent_interface import has_fused_update
from tfagents_system.agents.behaviour_cloning import is_wanted
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.agents.iteration_counts import prior_samples
from tfagents_system.agents.normalization import attach_reward_scale
from tfagents_system.agents.scheduled import check_scheduled
from tfagents_system.envs.history import policy_time_step_spec
from tfagents_system.errors import UserError, shown
from tfagents_system.train_params_base import TrainParamsBase, overrides_any


def make_agent(
    params: TrainParamsBase, observation_spec: Any, action_spec: Any, train_step: tf.Variable
) -> tf_agent.TFAgent:
    """The agent with its reward scale, which workers do not need.

    Raises:
      UserError: `agent_ctor` returns none.
    """
    agent = params.agent_ctor(policy_time_step_spec(params, observation_spec), action_spec, train_step)
    if not isinstance(agent, tf_agent.TFAgent):
        raise UserError(f"agent_ctor must return a TFAgent, found {shown(agent)}")
    if params.normalize_rewards:
        attach_reward_scale(agent)
    return agent


def check_agent(params: TrainParamsBase, agent: tf_agent.TFAgent) -> None:
    """Tries what a user's own agent may not support; the toolkit's own agents are known to.

    Raises:
      UserError: It can't be trained this way.
    """
    check_scheduled(params, agent)
    gamma = getattr(agent, "_gamma", params.discount)
    if params.n_step > 1 and gamma != params.discount:
        raise UserError(
            f"TrainParams.n_step={params.n_step} sums rewards with discount={params.discount}, and the agent of "
            f"agent_ctor has gamma={gamma}: they must be the same, let agent_ctor take self.discount"
        )
    is_prioritized = params.sample_form_ctor().is_prioritized
    if params.priority_exponent is not None and not is_prioritized:
        raise UserError(
            f"TrainParams.priority_exponent={params.priority_exponent:g}, and the form of sample_form_ctor does not "
            "draw by priorities: set priority_exponent to None, or let the form be one with is_prioritized"
        )
    is_own = overrides_any(params, "agent_ctor", "actor_ctor")  # The actor may turn out not to fit a fused update.
    needs_fused = is_prioritized or params.sample_form_ctor().burn_in > 0 or is_wanted(params)
    if not has_fused_update(agent) or _is_longer_than_episodes(params) or (needs_fused and is_own):
        update = make_block_update(params, agent)
        check_sequences(params, update)


def make_block_update(
    params: TrainParamsBase, agent: tf_agent.TFAgent, matmul_precision: str = "float32", seed: int = 0
) -> BlockUpdate:
    """Compiles the update of a block as a run does; arguments and errors as of BlockUpdate."""
    return BlockUpdate(
        agent,
        params.batch_size,
        params.sample_form_ctor(),
        matmul_precision,
        seed,
        measures=params.validation_share > 0,
        prior_samples=prior_samples(params),
    )


def check_sequences(params: TrainParamsBase, update: BlockUpdate) -> None:
    """Checks that there can be whole sequences: an agent's own `train` learns only from these, see BlockUpdate.

    Raises:
      UserError: There can be none.
    """
    if update.kind.startswith("generic") and _is_longer_than_episodes(params):
        raise UserError(
            "TrainParams.recurrent: its sequence_length and burn_in are longer than any episode "
            f"(horizon={params.horizon}), and the update of this agent, its own train, learns from whole sequences "
            f"alone: lower it to at most {params.horizon}, or use an algorithm of the toolkit's own with an actor "
            "whose distribution is a tanh-squashed Gaussian"
        )


def _is_longer_than_episodes(params: TrainParamsBase) -> bool:
    length = params.sample_form_ctor().sequence_length
    return length is not None and length > params.horizon
