"""Draws from a ring without the settings of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import DrawSettings, SequenceForm, Sequences, TransitionForm, Transitions


def draw_transitions(
    ring: Ring,
    rng: np.random.Generator,
    num_minibatches: int,
    batch_size: int,
    *,
    gamma: float = 1.0,
    frame_stack: Any = 1,
    held_out: bool = False,
    goals: Any = None,
    **form: Any,
) -> Transitions:
    """`form`: attributes of TransitionForm; `goals`: functions of an environment, for hindsight."""
    more: dict[str, Any] = {"held_out": held_out, "frame_stack": frame_stack, "goals": goals}
    settings = DrawSettings(batch_size, TransitionForm(**form), 10**6, 0, discount=gamma, **more)
    return TransitionForm(**form).draw(ring, rng, settings, num_minibatches)


def draw_sequences(
    ring: Ring,
    rng: np.random.Generator,
    num_minibatches: int,
    batch_size: int,
    length: int,
    *,
    burn_in: int = 0,
    frame_stack: Any = 1,
) -> Sequences:
    """`length`: of the sequences, their burn-in included."""
    form = SequenceForm(length, burn_in)
    settings = DrawSettings(batch_size, form, 10**6, 0, frame_stack=frame_stack)
    return form.draw(ring, rng, settings, num_minibatches)
