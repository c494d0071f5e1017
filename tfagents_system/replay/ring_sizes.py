"""How large the ring of a run is, and its segments: what TrainParams say, for the layout of its experience."""

from __future__ import annotations

import itertools

from tfagents_system.replay.ring_files import default_slack_rows
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.layout import Layout


def capacity_rows(params: TrainParamsBase, layout: Layout) -> int:
    """Rows of the ring."""
    return -(-params.buffer_size * _episode_rows(params, layout) // params.horizon)


def slack_rows(params: TrainParamsBase, layout: Layout) -> int:
    """Rows beyond those, in which the last checkpoints' oldest experience stays."""
    return default_slack_rows(capacity_rows(params, layout), segment_rows(params, layout))


def segment_rows(params: TrainParamsBase, layout: Layout) -> int:
    """Rows of a segment, at most."""
    steps = min(params.horizon, layout.max_segment_steps(params.sample_form_ctor().sequence_length))
    return layout.history_rows(params.frame_stack) + steps + 1


def longest_segment_rows(params: TrainParamsBase, layout: Layout) -> int:
    """Rows of a segment that the ring takes, whoever made it."""
    return min(capacity_rows(params, layout), slack_rows(params, layout))


def buffer_size_to_take(rows: int, params: TrainParamsBase, layout: Layout) -> int:
    """The smallest `buffer_size` of whole episodes whose ring takes segments of so many rows."""
    of_episode, of_segment = _episode_rows(params, layout), segment_rows(params, layout)
    sizes = ((count * params.horizon, count * of_episode) for count in itertools.count(1))
    return next(steps for steps, size in sizes if min(size, default_slack_rows(size, of_segment)) >= rows)


def _episode_rows(params: TrainParamsBase, layout: Layout) -> int:
    """An episode of full length takes one row more for each of its segments than it has steps.

    Where frames are stacked, segments from within an episode have their history, too.
    """
    segments = layout.num_segments(params.horizon, params.sample_form_ctor().sequence_length)
    history = (segments - 1) * layout.history_rows(params.frame_stack)
    return params.horizon + segments + history


def ring_bytes(params: TrainParamsBase, layout: Layout) -> int:
    """Of the ring's files; as much again in the run directory where SAC_REPLAY_DIR is another folder."""
    priority_bytes = 4 if params.sample_form_ctor().is_prioritized else 0
    return (capacity_rows(params, layout) + slack_rows(params, layout)) * (layout.step_bytes + priority_bytes)
