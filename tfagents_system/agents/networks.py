"""What `TrainParamsBase.actor_ctor` and `critic_ctor` return, under one name for users' hooks."""

from tfagents_system.agents.actor import build_actor
from tfagents_system.agents.critic import build_critic

__all__ = ["build_actor", "build_critic"]
