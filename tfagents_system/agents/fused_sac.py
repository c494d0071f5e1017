"""One SAC update as a smaller graph: the numbers of TF-Agents' `SacAgent._train`, without what it does twice."""

from __future__ import annotations

from typing import Any

from tf_agents.agents.sac.sac_agent import SacAgent

from tfagents_system.agents.action_sampling import UnsupportedAgentError
from tfagents_system.agents.fused_update import FusedUpdate
from tfagents_system.agents.update_parts import Parts, unique_variables

__all__ = ["FusedSacUpdate", "UnsupportedAgentError"]


class FusedSacUpdate(FusedUpdate):
    """SAC's losses and steps (Haarnoja et al., arXiv 1812.05905, equations 5, 7, 9 and 18) on an agent's variables.

    All that SacAgent can be given is kept: networks, optimizers, weights of losses, losses of TD errors, clipping,
    periods of the target. TF-Agents evaluates the actor three times; here alpha's loss takes log pi from the actor's
    loss, as the paper's algorithm 1 does: both see the actor before its step. Actions and log pi come from the noise
    itself instead of back through tanh, and a soft target update is one fused operation a variable.

    Args:
      agent: Its networks, optimizers, counter and settings are used in place, so its checkpoints stay what they are.
      share_log_pi: False evaluates the actor once more for alpha, after the actor's step: TF-Agents' own order.
      seed, burn_in_steps: See FusedUpdate.

    Raises:
      UnsupportedAgentError: The agent is not a plain SacAgent. That its actor's distributions are not tanh-squashed
        Gaussians is found at the first call.
    """

    def __init__(self, agent: Any, share_log_pi: bool = True, seed: int = 0, burn_in_steps: int = 0) -> None:
        reason = _why_unsupported(agent)
        if reason:
            raise UnsupportedAgentError(reason)
        super().__init__(_parts(agent), share_log_pi, seed, burn_in_steps)


def _parts(agent: SacAgent) -> Parts:
    return Parts(
        policy=agent._policy,
        train_policy=agent._train_policy,
        actor=agent._actor_network,
        critics=(agent._critic_network_1, agent._critic_network_2),
        targets=(agent._target_critic_network_1, agent._target_critic_network_2),
        log_alpha=agent._log_alpha,
        actor_optimizer=agent._actor_optimizer,
        critic_optimizer=agent._critic_optimizer,
        alpha_optimizer=agent._alpha_optimizer,
        train_step=agent.train_step_counter,
        action_spec=agent.action_spec,
        as_transition=agent._as_transition,
        gamma=agent._gamma,
        target_entropy=agent._target_entropy,
        target_update_tau=agent._target_update_tau,
        target_update_period=agent._target_update_period,
        gradient_clipping=agent._gradient_clipping,
        critic_loss_weight=agent._critic_loss_weight,
        actor_loss_weight=agent._actor_loss_weight,
        alpha_loss_weight=agent._alpha_loss_weight,
        reward_scale_factor=agent._reward_scale_factor,
        td_errors_loss_fn=agent._td_errors_loss_fn,
        has_log_alpha_loss=agent._use_log_alpha_in_alpha_loss,
    )


def _why_unsupported(agent: Any) -> str:
    """What makes the agent's update another one than SacAgent's; empty if nothing does."""
    if type(agent) is not SacAgent:
        return f"{type(agent).__name__} is not TF-Agents' SacAgent itself"
    if agent._debug_summaries or agent._summarize_grads_and_vars:
        return "the agent writes summaries of its own"
    critics = {variable.ref() for variable in unique_variables((agent._critic_network_1, agent._critic_network_2))}
    if any(variable.ref() in critics for variable in agent._actor_network.trainable_variables):
        return "actor and critics share variables"
    return ""
