"""The check of SAC_AGENT_FROM: whether a new agent can begin with the weights of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfagents_system.checks.checklist import Check
from tfagents_system.run_files.agent_start import AgentStart, find_start, split
from tfagents_system.trainer.starting_agent import values_for


def check_start(
    source: Path | None, parts: tuple[str, ...], exp_dir: Path, agent: Any, begins: bool, check: Check
) -> AgentStart | None:
    """Compares each layer that is taken.

    Args:
      source: SAC_AGENT_FROM.
      parts: SAC_AGENT_PARTS.
      exp_dir: The run's own directory.
      agent: Of the run; None if it could not be built, which others report. It stays as it is.
      begins: The run, or its agent, is a new one.
      check: Gets what was found.

    Returns:
      What the agent begins with; None if that is nothing, or does not fit.
    """
    if source is None:
        check.errors.append(
            f"SAC_AGENT_PARTS={','.join(parts)} says what of another agent is taken: set SAC_AGENT_FROM, or unset it"
        )
        return None
    if not begins:
        check.notes.append(
            "SAC_AGENT_FROM is for a new run, or a new agent (--reset_training): this run goes on with the agent that "
            "it has"
        )
        return None
    if split(str(source))[0].resolve() == exp_dir.resolve():
        check.errors.append(f"SAC_AGENT_FROM={source} is this run's own directory: give another one")
        return None
    with check.catching():
        start = find_start(str(source), parts)
        if agent is None:
            return None
        values = values_for(agent, start)
        check.facts.append(f"{start.files}: {values.in_words()}")
        return start
    return None
