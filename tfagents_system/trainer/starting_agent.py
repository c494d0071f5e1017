"""The values that a run's agent begins with where SAC_AGENT_FROM names another one."""

from __future__ import annotations

from typing import Any

from tfagents_system.agents import starting_values
from tfagents_system.agents.algorithms import ACTOR
from tfagents_system.agents.starting_values import StartingValues, UnsupportedAgentError, networks_of
from tfagents_system.errors import UserError
from tfagents_system.policies import saved_actor
from tfagents_system.run_files.agent_start import AgentStart


def values_for(agent: Any, start: AgentStart) -> StartingValues:
    """Values that fit the agent, which stays as it is.

    Raises:
      UserError: They do not fit; says which layers, or that nothing can be read.
    """
    parts = start.parts or None
    try:
        if start.kind != "checkpoint" and not networks_of(agent)[ACTOR]:
            raise UserError(
                f"SAC_AGENT_FROM={start.source} is a policy, which has an actor's weights alone, and this run's agent "
                "has no actor, its critics are what acts: give another run itself, or one of its checkpoints "
                "(RUN@checkpoint_<updates>), which have critics"
            )
        if start.kind == "checkpoint":
            found = starting_values.of_checkpoint(agent, start.prefix, parts)
        else:
            found = saved_actor.of_policy(agent, start.files, parts)
    except UnsupportedAgentError as error:
        raise UserError(f"SAC_AGENT_FROM needs an agent of the toolkit's own: {error}") from None
    except ValueError as error:
        raise UserError(f"SAC_AGENT_FROM={start.source}: {error}") from None
    if found.findings:
        lines = "\n  ".join(found.findings)
        raise UserError(
            f"SAC_AGENT_FROM={start.source} does not fit this run's agent:\n  {lines}\nBuild the networks alike, or "
            "say with SAC_AGENT_PARTS what is to be taken"
        )
    return found
