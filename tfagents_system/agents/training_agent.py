"""The agent as a run trains it, and whether it can be trained as TrainParams want it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.sac.sac_agent import SacAgent

from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.agents.ensemble import EnsembleAgent
from tfagents_system.agents.normalization import attach_reward_scale
from tfagents_system.agents.sequence_lengths import burn_in_steps, sequence_length
from tfagents_system.envs.history import policy_time_step_spec
from tfagents_system.errors import UserError, shown
from tfagents_system.train_params_base import TrainParamsBase

_OURS = (SacAgent, EnsembleAgent)


def make_agent(
    params: TrainParamsBase, observation_spec: Any, action_spec: Any, train_step: tf.Variable
) -> tf_agent.TFAgent:
    """The agent with its scale of rewards, which workers need not have.

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
    """Tries what an agent of the user's own may not be able to; the toolkit's own are known to be.

    Raises:
      UserError: It can't be trained so.
    """
    gamma = getattr(agent, "_gamma", params.discount)
    if params.n_step > 1 and gamma != params.discount:
        raise UserError(
            f"TrainParams.n_step={params.n_step} sums rewards with discount={params.discount}, and the agent of "
            f"agent_ctor has gamma={gamma}: they must be the same, let agent_ctor take self.discount"
        )
    if type(agent) not in _OURS or _is_longer_than_episodes(params):
        update = BlockUpdate(
            agent,
            params.train_batch_size,
            sequence_length(params),
            burn_in_steps=burn_in_steps(params),
            measures=params.validation_share > 0,
        )
        check_sequences(params, update)


def check_sequences(params: TrainParamsBase, update: BlockUpdate) -> None:
    """An agent's own `train` learns from whole sequences alone, see BlockUpdate; there must be some.

    Raises:
      UserError: There can be none.
    """
    if update.kind.startswith("generic") and _is_longer_than_episodes(params):
        raise UserError(
            f"TrainParams.recurrent_sequence_length={params.recurrent_sequence_length} is longer than any episode "
            f"(horizon={params.horizon}), and the update of this agent, its own train, learns from whole sequences "
            f"alone: lower it to at most {params.horizon}, or use an algorithm of the toolkit's own with an actor "
            "whose distribution is a tanh-squashed Gaussian"
        )


def _is_longer_than_episodes(params: TrainParamsBase) -> bool:
    length = sequence_length(params)
    return length is not None and length > params.horizon
