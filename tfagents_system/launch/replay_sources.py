"""The check of SAC_REPLAY_FROM: whether a run can begin with the experience of others."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tfagents_system.checks.checklist import Check
from tfagents_system.errors import UserError
from tfagents_system.experience.conversion import Conversion, conversion_for
from tfagents_system.experience.ring_actions import action_differences
from tfagents_system.replay.ring_sizes import buffer_size_to_take, capacity_rows, longest_segment_rows
from tfagents_system.replay.stored_ring import StoredRing, differences
from tfagents_system.train_params_base import TrainParamsBase


def check_sources(
    sources: Sequence[Path], exp_dir: Path, params: TrainParamsBase, specs: bytes, has_begun: bool, check: Check
) -> None:
    """Compares each source with what the run will store.

    Args:
      sources: SAC_REPLAY_FROM.
      exp_dir: The run's own directory.
      params: Of the run.
      specs: The content of its specs file.
      has_begun: The run has its own experience already.
      check: Gets what was found.
    """
    if has_begun:
        check.notes.append(
            "SAC_REPLAY_FROM is for a new run: this one has begun and goes on with the experience that it has"
        )
        return
    conversion, rows = _conversion(params, specs), 0
    layout = conversion.layout
    most, longest = capacity_rows(params, layout), longest_segment_rows(params, layout)
    for source in sources:
        if source.resolve() == exp_dir.resolve():
            check.errors.append(f"SAC_REPLAY_FROM={source} is this run's own directory: give another one")
            continue
        try:
            stored = StoredRing(source)
        except UserError as error:
            check.errors.append(f"SAC_REPLAY_FROM: {error}")
            continue
        if lines := differences(layout, stored.layout) or action_differences(conversion.actions, stored):
            check.errors.append(
                f"SAC_REPLAY_FROM={source} holds other experience than this run collects: {'; '.join(lines)}. Give a "
                "run of the same environment and settings (action_history, action_table, normalize_rewards, potential)"
            )
            continue
        if (needed := stored.longest_segment_rows(most)) > longest:
            check.errors.append(
                f"SAC_REPLAY_FROM={source} has segments of {needed:,} rows, and the replay buffer takes {longest:,} at "
                f"most: set buffer_size to at least {buffer_size_to_take(needed, params, layout):,}"
            )
            continue
        rows += stored.rows
        check.facts.append(f"{source}: {stored.steps:,} steps")
    if rows > most:
        check.notes.append(
            f"SAC_REPLAY_FROM takes {rows:,} rows, and the replay buffer has {most:,}: the last ones are kept. Raise "
            "buffer_size to keep all"
        )


def _conversion(params: TrainParamsBase, specs: bytes) -> Conversion:
    with tempfile.NamedTemporaryFile(suffix=".pbtxt") as file:
        file.write(specs)
        file.flush()
        return conversion_for(params, Path(file.name))
