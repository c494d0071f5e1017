"""The check of SAC_AGENT_FROM: whether a new agent can begin with the weights of another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tree

from tfagents_system.agents.algorithms import ACTOR, CRITICS, NORMALIZER
from tfagents_system.checks.checklist import Check
from tfagents_system.envs.actions import LeafActions, in_words
from tfagents_system.envs.specs import load_actions
from tfagents_system.errors import UserError
from tfagents_system.experience.ring_actions import mean_the_same
from tfagents_system.run_files.agent_start import AgentStart, find_start, split
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.starting_agent import values_for

_MOST_PARENTS = 4  # A policy of a run is at most so deep below it.


def check_start(
    source: Path | None,
    parts: tuple[str, ...],
    exp_dir: Path,
    agent: Any,
    begins: bool,
    check: Check,
    actions: Any,
    actor_observations: Sequence[str] | None = None,
) -> AgentStart | None:
    """Compares each layer that is taken, and what its actions are.

    Args:
      source: SAC_AGENT_FROM.
      parts: SAC_AGENT_PARTS.
      exp_dir: The run's own directory.
      agent: Of the run; None if it could not be built, which others report. It stays as it is.
      begins: The run, or its agent, is a new one.
      check: Gets what was found.
      actions: Nest of LeafActions of the run's environment.
      actor_observations: The hyperparameter.

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
        _check_same_parts(source, parts, actor_observations)
        values = values_for(agent, start)
        _compare_actions(start, tree.flatten(actions), check)
        check.facts.append(f"{start.files}: {values.in_words()}")
        return start
    return None


def _check_same_parts(source: Path, parts: tuple[str, ...], here: Sequence[str] | None) -> None:
    """Two actors that see other parts of the observation may have layers of the same shapes.

    Raises:
      UserError: They see others.
    """
    found = (read_json(paths.resolved) for paths in _runs_around(str(source)))
    there = next((each["params"].get("actor_observations") for each in found if each and "params" in each), None)
    takes_actor = not parts or bool({ACTOR, NORMALIZER} & set(parts))
    if takes_actor and there is not None and here is not None and set(there) != set(here):
        raise UserError(
            f"SAC_AGENT_FROM={source}: its actor sees {', '.join(sorted(there))}, this run's "
            f"{', '.join(sorted(here))}: set TrainParams.actor_observations as there, or take its critics alone with "
            "SAC_AGENT_PARTS=critics"
        )


def _compare_actions(start: AgentStart, ours: Sequence[LeafActions], check: Check) -> None:
    """Agents of the same layers may have learned other actions: they choose rows of a table, or shares of bounds.

    Raises:
      UserError: The actions to choose from are others, or in another order.
    """
    if start.parts and not {ACTOR, CRITICS} & set(start.parts):
        return
    theirs = _actions_there(start)
    if theirs is None:
        return
    if len(ours) == len(theirs) and all(map(mean_the_same, ours, theirs)):
        return
    there, here = (", ".join(map(in_words, leaves)) for leaves in (theirs, ours))
    told = f"its actions are {there}, this run's {here}, or the same in another order"
    if all(leaf.rows is None for leaf in (*ours, *theirs)):
        check.notes.append(
            f"SAC_AGENT_FROM={start.source}: {told}: an agent's actions are shares of the bounds, in the order of the "
            "action space, so it begins with other actions than it has learned"
        )
        return
    raise UserError(
        f"SAC_AGENT_FROM={start.source} chooses from other actions than this run's agent: {told}. Give "
        "TrainParams.action_table the same rows in the same order, or take parts that see no actions, such as "
        "SAC_AGENT_PARTS=encoder,normalizer"
    )


def _actions_there(start: AgentStart) -> list[LeafActions] | None:
    """Of each leaf, as the specs of its run say; None where nobody does."""
    files = (paths.specs for paths in _runs_around(start.source) if paths.specs.is_file())
    return next((tree.flatten(load_actions(file)) for file in files), None)


def _runs_around(source: str) -> Iterator[RunPaths]:
    """The directories that may be the run of a source: its own path, and those above it."""
    path = split(source)[0]
    return map(RunPaths, (path, *path.parents[:_MOST_PARENTS]))
