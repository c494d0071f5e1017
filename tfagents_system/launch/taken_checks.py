"""The checks of what a run takes from another one (SAC_FROM), and of whether its own experience still fits."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tree

from tfagents_system.agents.taken_weights import TakenWeights
from tfagents_system.checks.checklist import Check
from tfagents_system.envs.actions import LeafActions, actions_of, in_words
from tfagents_system.envs.specs import load_actions
from tfagents_system.errors import UserError
from tfagents_system.experience.conversion import Conversion, conversion_for
from tfagents_system.experience.ring_actions import SPECS, mean_the_same
from tfagents_system.replay.ring_files import find_any_files
from tfagents_system.replay.ring_sizes import buffer_size_to_take, capacity_rows, longest_segment_rows
from tfagents_system.replay.stored_ring import StoredRing, differences
from tfagents_system.run_files.run_directory import from_line, read_run_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.taken import Taken
from tfagents_system.settings.variable_values import NETWORKS
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.layout import Layout


def check_taken(taken: Taken, params: TrainParamsBase, trial: Any, specs: bytes, check: Check) -> None:
    """Compares agent, actions and experience of the other run with this one's.

    Args:
      taken: What is taken.
      params: Of the run.
      trial: With its agent, which stays as it is; None where that could not be built, which others report.
      specs: The content of its specs file.
      check: Gets what was found.
    """
    if taken.agent is not None and trial.agent is not None:
        with check.catching():
            _compare_agent(taken, trial.agent, check)
    with check.catching():
        _compare_actions(taken, tree.flatten(actions_of(*trial.specs[1:])), check)
    if taken.has_rows:
        with check.catching():
            _compare_rows(taken, params, specs, check)
    for name, had in (("num_iter", taken.iteration), ("num_env_steps", taken.env_steps)):
        wanted = getattr(params, name)
        if had and wanted is not None and had >= wanted:
            check.errors.append(
                f"TrainParams.{name}={wanted} is for both runs together where SAC_TAKE=all, and the other one has had "
                f"{had}: raise it, or take the agent alone"
            )


def _compare_agent(taken: Taken, agent: Any, check: Check) -> None:
    assert taken.agent is not None
    try:
        weights = TakenWeights(agent, taken.agent, networks_alone=taken.take == NETWORKS)
    except ValueError as error:
        raise UserError(f"SAC_FROM={taken.source}: {error}") from None
    if not weights.has_network:
        lines = "\n  ".join(weights.misfits)
        raise UserError(
            f"SAC_FROM={taken.source}: nothing of that agent fits this run's:\n  {lines}\nBuild the networks alike, or "
            "take experience alone (SAC_TAKE=replay)"
        )
    check.facts.append(f"{taken.source}: {weights.in_words}")
    check.notes += [f"SAC_FROM={taken.source}: begins anew, since it does not fit: {line}" for line in weights.misfits]


def _compare_actions(taken: Taken, ours: Sequence[LeafActions], check: Check) -> None:
    """Agents of the same layers may have learned other actions: these are rows of a table, or shares of bounds.

    Raises:
      UserError: They choose from others, or in another order; or the bounds of stored ones are others.
    """
    file = Path(taken.run) / SPECS
    if not file.is_file():
        return
    theirs = tree.flatten(load_actions(file))
    if len(ours) == len(theirs) and all(map(mean_the_same, ours, theirs)):
        return
    there, here = (", ".join(map(in_words, leaves)) for leaves in (theirs, ours))
    words = f"SAC_FROM={taken.source}: its actions are {there}, this run's {here}, or the same in another order"
    if not taken.has_rows and all(leaf.rows is None for leaf in (*ours, *theirs)):
        check.notes.append(f"{words}: the agent begins with other actions than it has learned")
        return
    raise UserError(f"{words}: give the action space the same bounds, or action_table the same rows in the same order")


def _compare_rows(taken: Taken, params: TrainParamsBase, specs: bytes, check: Check) -> None:
    conversion, stored = _conversion(params, specs), StoredRing(Path(taken.run))
    layout = conversion.layout
    if lines := differences(layout, stored.layout):
        raise UserError(
            f"SAC_FROM={taken.source} holds other experience than this run collects: {'; '.join(lines)}. Give a run of "
            "the same environment and settings (action_history, normalize_rewards, potential), or take the agent alone"
        )
    most, longest = capacity_rows(params, layout), longest_segment_rows(params, layout)
    if (needed := stored.longest_segment_rows(most)) > longest:
        raise UserError(
            f"SAC_FROM={taken.source} has segments of {needed:,} rows, and the replay buffer takes {longest:,} at "
            f"most: set buffer_size to at least {buffer_size_to_take(needed, params, layout):,}"
        )
    check.facts.append(f"{taken.run}: {stored.steps:,} steps")
    if stored.rows > most:
        check.notes.append(
            f"SAC_FROM takes {stored.rows:,} rows, and the replay buffer has {most:,}: the last ones are kept. Raise "
            "buffer_size to keep all"
        )


def _conversion(params: TrainParamsBase, specs: bytes) -> Conversion:
    with tempfile.NamedTemporaryFile(suffix=".pbtxt") as file:
        file.write(specs)
        file.flush()
        return conversion_for(params, Path(file.name))


def ring_findings(params: TrainParamsBase, layout: Layout, folder: Path, paths: RunPaths) -> list[str]:
    """How the experience of a run differs from what its ring was made for, which has one layout and size for life.

    Args:
      params: Of the run, as they are now.
      layout: Of its experience from now on.
      folder: Of the ring.
      paths: Of the run.
    """
    ring = find_any_files(folder)
    if ring is None:
        return []
    lines = differences(layout, ring.layout, makes_do=False, words=("now", "before"))
    if not lines and (rows := capacity_rows(params, layout)) != ring.capacity_rows:
        lines = [f"rows: now {rows:,} (buffer_size={params.buffer_size}), before {ring.capacity_rows:,}"]
    stack = read_run_json(paths).get("attributes", {}).get("frame_stack", 1)
    if not lines and layout.history_rows(params.frame_stack) > layout.history_rows(stack):
        lines = [f"frame_stack: now {params.frame_stack}, before {stack}"]
    if not lines:
        return []
    return [
        f"the experience in {folder} does not fit: {'; '.join(lines)}. A run's replay buffer keeps its columns and its "
        f"size: restore what it was, or begin another run with {from_line(paths)} (--take all takes what fits)"
    ]
