"""`replay_window_steps`: samples are of the newest so many steps, uniformly, and of nothing before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.checks.schedules import Schedule
from tfagents_system.replay.draw_settings import DrawSettings
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sample_forms import SequenceForm, TransitionForm
from tfagents_system.replay.sampling import NothingToDrawError, draw, draw_sequences, draw_transitions

STEPS = 7


def ring_of(folder: Path, segments: int = 40, held_out: int = 0) -> Ring:
    """Episodes of 7 steps around the ring's end; each `held_out`-th is held out, the first of them excepted."""
    ring = Ring.open(folder / "ring", LAYOUT, 150, slack_rows=20)
    for episode in range(segments):
        segment = numbered_segment(0, episode, STEPS, episode=episode)
        segment.held_out = bool(held_out and episode % held_out == held_out - 1)
        assert ring.append(segment)
    return ring


def position(observation: np.ndarray) -> np.ndarray:
    """Number of the step in the whole run, of observations `[..., 3]`: worker, episode, step."""
    return (observation[..., 1] * STEPS + observation[..., 2]).astype(int)


@pytest.mark.parametrize("window", [1, 6, 7, 8, 50, 100])
def test_transitions_are_of_the_newest_steps_and_uniform(tmp_path: Path, window: int) -> None:
    ring = ring_of(tmp_path)
    draws = 400 * window
    batch = draw_transitions(ring, np.random.default_rng(0), 1, draws, n_step=3, gamma=0.9, window_steps=window)
    counts = np.bincount(position(batch.observation[0][0]), minlength=40 * STEPS)
    assert (counts[:-window] == 0).all(), "nothing before the window"
    expected, found = 400, counts[-window:]
    assert ((found - expected) ** 2 / expected).sum() < window - 1 + 4 * np.sqrt(2 * window) + 1e-9


def test_sequences_do_not_reach_before_the_window_and_weigh_its_steps_the_same(tmp_path: Path) -> None:
    ring, window = ring_of(tmp_path), 17
    batch = draw_sequences(ring, np.random.default_rng(1), 1, 20_000, 4, burn_in=1, window_steps=window)
    steps = position(batch.observation[0][0])
    oldest = 40 * STEPS - window
    assert steps.min() == oldest
    weights = np.bincount(steps.ravel(), batch.weight[0].ravel(), minlength=40 * STEPS)[oldest:][:window]
    np.testing.assert_allclose(weights / weights.mean(), 1, atol=0.05)


def test_a_window_as_large_as_the_ring_draws_what_no_window_draws(tmp_path: Path) -> None:
    ring = ring_of(tmp_path)
    drawn = [
        draw_transitions(ring, np.random.default_rng(2), 3, 50, window_steps=steps).to_arrays()
        for steps in (None, ring.training_steps, 10**9)
    ]
    for other in drawn[1:]:
        for array, expected in zip(other, drawn[0], strict=True):
            np.testing.assert_array_equal(array, expected)


def test_it_counts_steps_of_training_and_validation_draws_from_the_same_rows(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, held_out=4)  # Episode 39 is held out, 38, 37 and 36 are not, 35 is.
    options: dict[str, Any] = {"num_minibatches": 1, "batch_size": 500}
    rng = np.random.default_rng(3)

    def episodes(window: int, held_out: bool) -> set[int]:
        batch = draw_transitions(ring, rng, **options, held_out=held_out, window_steps=window)
        return set(batch.observation[0][0, :, 1].astype(int))

    assert episodes(3 * STEPS, held_out=False) == {36, 37, 38} and episodes(3 * STEPS, held_out=True) == {39}
    assert episodes(3 * STEPS + 1, held_out=False) == {34, 36, 37, 38}
    assert episodes(3 * STEPS + 1, held_out=True) == {35, 39}


def test_where_the_window_has_nothing_held_out_there_is_nothing_to_measure(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, segments=39, held_out=4)
    with pytest.raises(NothingToDrawError):
        draw_transitions(ring, np.random.default_rng(0), 1, 5, held_out=True, window_steps=STEPS)


@pytest.mark.parametrize("form", [TransitionForm(2), SequenceForm(3, 1)])
def test_the_settings_of_an_iteration_have_the_schedules_value(tmp_path: Path, form: Any) -> None:
    window = Schedule.of({"points": [[0, 10], [4, 5]], "by": "iterations"})
    settings = DrawSettings(8, form, 10, 0, window=window)
    assert [settings.at(0, 0, iteration).window_steps for iteration in (0, 1, 2, 4, 9)] == [10, 9, 8, 5, 5]
    observation = draw(ring_of(tmp_path), np.random.default_rng(0), settings.at(0, 0, 4), 50)[
        1 if isinstance(form, SequenceForm) else 0
    ]
    assert position(observation).min() == 40 * STEPS - 5
    plain = DrawSettings(8, form, 10, 0)
    assert plain.at(1, 2, 3) is plain
