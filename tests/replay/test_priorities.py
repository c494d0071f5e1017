"""Draws by priority from a ring: which rows, with which weights, and what their TD errors change."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.segments_for_tests import LAYOUT, append_more, filled_ring, numbered_segment
from tfagents_system.checks.schedules import Schedule
from tfagents_system.replay import sampling
from tfagents_system.replay.n_step import MiniRaces
from tfagents_system.replay.priorities import EPSILON, NO_ROW, Priorities, Prioritized, discard
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.replay.sampling import DrawSettings, PriorData
from tfagents_system.run_files.kept_checkpoints import PRIORITIES

B, STEPS = 32, 5
FORM = TransitionForm(is_prioritized=True)


def prioritized(ring: Ring, exponent: float = 1.0, beta: float = 1.0, **others: Any) -> DrawSettings:
    given = {"form": FORM, "batch_size": B, "max_block_minibatches": 8, "seed": 3, **others}
    return DrawSettings(prioritized=Prioritized(Priorities(ring, exponent), beta), **given)


def priorities_of(settings: DrawSettings) -> Priorities:
    assert settings.prioritized is not None and settings.prioritized.priorities is not None
    return settings.prioritized.priorities


def drawn(ring: Ring, settings: DrawSettings, count: int = 60, **options: bool) -> dict[str, np.ndarray]:
    """Arrays by name, `[K * B, ...]`; those of the last part, where there are two."""
    arrays = sampling.draw(ring, np.random.default_rng(1), settings, count, **options)
    names = [each.name for each in settings.form.arrays(has_returns=False)]
    names.insert(1, "image")
    names.insert(names.index("next_observation") + 1, "next image")
    return dict(zip(names, (array.reshape(-1, *array.shape[2:]) for array in arrays[-len(names) :]), strict=True))


def measured(ring: Ring, settings: DrawSettings, errors: dict[tuple[int, int], float], other: float = 1.0) -> None:
    """Gives the steps (episode, step) these errors, and all others that are trained on another one."""
    places = np.flatnonzero(ring.is_training_start(slice(0, ring.num_rows)))
    ids = ring.observation[0][places, 1:].astype(int)
    values = [errors.get((int(episode), int(step)), other) for episode, step in ids]
    priorities = priorities_of(settings)
    priorities.measure(priorities.numbers(places), np.array(values, np.float32) - EPSILON)


def counts(samples: dict[str, np.ndarray]) -> dict[tuple[int, int], int]:
    steps, found = np.unique(samples["observation"][:, -2:].astype(int), axis=0, return_counts=True)
    return {(int(episode), int(step)): int(count) for (episode, step), count in zip(steps, found, strict=True)}


def test_steps_are_drawn_by_their_errors_and_weights_make_up_for_it(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring", segments=2)
    settings = prioritized(ring, exponent=0.5)
    measured(ring, settings, {(0, 0): 16.0, (1, 4): 4.0})
    samples = drawn(ring, settings, 400)
    total, number = 4.0 + 2.0 + 8.0, 10  # Roots of the errors.
    found, draws = counts(samples), 400 * B
    for step, root in (((0, 0), 4.0), ((1, 4), 2.0), ((1, 3), 1.0)):
        assert found[step] == pytest.approx(draws * root / total, abs=4 * np.sqrt(draws * root / total))
    roots = np.array([{(0, 0): 4.0, (1, 4): 2.0}.get((e, s), 1.0) for _, e, s in samples["observation"].astype(int)])
    raw = 1 / (number * roots / total)
    largest = raw.reshape(400, B).max(axis=1)
    np.testing.assert_allclose(samples["weight"].reshape(400, B), raw.reshape(400, B) / largest[:, None], rtol=1e-5)
    half = drawn(ring, dataclasses.replace(settings, prioritized=Prioritized(priorities_of(settings), 0.5)))
    assert sorted(set(np.round(half["weight"], 5))) == pytest.approx([0.5, np.sqrt(0.5), 1], abs=1e-5)
    np.testing.assert_array_equal(drawn(ring, settings)["row"], half["row"])


def test_rows_are_counted_from_the_runs_beginning_and_those_overwritten_since_are_passed_over(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring")
    settings = prioritized(ring)
    measured(ring, settings, {})
    samples = drawn(ring, settings)
    np.testing.assert_array_equal(
        samples["row"], samples["observation"][:, 1] * (STEPS + 1) + samples["observation"][:, 2]
    )
    append_more(ring, 14)  # Episodes 14 to 23 are held, in the places 0 to 59 of 84.
    measured(ring, settings, {})
    priorities = priorities_of(settings)
    gone, to_come = np.array([0, 7, 14 * 6 - 1, 44]), np.array([3 * 84 + 2, 2 * 84 + 3, NO_ROW])
    priorities.measure(np.concatenate([gone, to_come]), np.full(7, 1e6, np.float32))
    found = counts(drawn(ring, settings))
    assert set(found) == {(episode, step) for episode in range(14, 24) for step in range(STEPS)}
    assert max(found.values()) < 100, "all are alike"
    priorities.measure(np.array([14 * 6 + 2]), np.array([1e6], np.float32))
    assert set(counts(drawn(ring, settings))) == {(14, 2)}


def test_new_steps_count_as_twice_the_mean(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring", segments=8)
    settings = prioritized(ring)
    measured(ring, settings, {(0, 0): 41.0})  # Their mean is 2.
    append_more(ring, 2)
    found, draws = counts(drawn(ring, settings, 500)), 500 * B
    total = 39 * 1.0 + 41.0 + 10 * 4.0
    new = sum(count for (episode, _), count in found.items() if episode >= 8)
    assert new == pytest.approx(draws * 40 / total, abs=4 * np.sqrt(draws))
    assert found[0, 0] == pytest.approx(draws * 41 / total, abs=4 * np.sqrt(draws))


def test_held_out_episodes_are_drawn_for_validation_alone_and_without_priorities(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring", segments=6)
    ring.append(numbered_segment(number=6, held_out=True))
    settings = prioritized(ring)
    measured(ring, settings, {(2, 2): 100.0})
    assert not any(episode == 6 for episode, _ in counts(drawn(ring, settings)))
    held_out = drawn(ring, settings, held_out=True)
    assert {episode for episode, _ in counts(held_out)} == {6}
    assert (held_out["weight"] == 1).all() and (held_out["row"] == NO_ROW).all()


def test_stacked_frames_leave_old_rows_out(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring", segments=17, capacity=60, slack=20)
    settings = prioritized(ring)
    measured(ring, settings, {(7, 0): 1e4, (13, 2): 50.0})
    append_more(ring, 1)  # Around the end of the files.
    ring.layout = dataclasses.replace(LAYOUT, leaves=("id", "image"))
    stacked = dataclasses.replace(settings, frame_stack={"id": 3})
    measured(ring, settings, {(8, 0): 1e6})
    found = counts(drawn(ring, stacked))
    assert (8, 0) not in found and (8, 2) in found, "frames before it have been given up"


def test_only_the_beginning_of_a_mini_race_changes_priorities(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring", segments=4, capacity=60, steps=9)
    form = TransitionForm(3, races=MiniRaces(100, (20, 2)), is_prioritized=True)
    samples = drawn(ring, prioritized(ring, form=form), 200)
    t = np.round(samples["horizon_time"] * 100).astype(int)
    np.testing.assert_array_equal(samples["row"] == NO_ROW, t >= 60)
    rows = samples["observation"][:, 1] * 10 + samples["observation"][:, 2]
    np.testing.assert_array_equal(samples["row"][t < 60], rows[t < 60])
    assert (t >= 60).any() and (t < 60).any()


def test_prior_data_have_no_priorities_and_share_the_scale_of_weights(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring")
    prior = Ring.open(tmp_path / "prior", LAYOUT, 60, 24)
    prior.take_over([numbered_segment(7, number) for number in range(4)])
    settings = prioritized(ring, prior=PriorData(prior, 12))
    measured(ring, settings, {(3, 3): 50.0})  # P is 50 / 99 there, and 1 / 99 elsewhere: weights 0.0396 and 1.98.
    others = drawn(ring, settings)
    assert set(others["observation"][:, 0]) == {7} and (others["row"] == NO_ROW).all()
    np.testing.assert_allclose(others["weight"], 50 / 99, rtol=1e-4)
    offline = drawn(ring, settings, is_offline=True)
    assert (offline["weight"] == 1).all() and (offline["row"] == NO_ROW).all()


def test_beta_may_be_a_schedule(tmp_path: Path) -> None:
    settings = prioritized(filled_ring(tmp_path / "ring"))
    schedule = Schedule.of({"points": [[0, 0.4], [100, 1.0]], "by": "train_steps"})
    settings = dataclasses.replace(settings, beta=schedule)
    at = settings.at(0, 50, 0).prioritized
    assert at is not None and at.beta == pytest.approx(0.7)


def test_priorities_survive_a_killed_process_and_go_back_with_a_snapshot(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring")
    priorities = Priorities(ring, 0.6)
    priorities.measure(np.arange(30), np.linspace(0, 3, 30, dtype=np.float32))
    append_more(ring, 12)
    kept, header = priorities.snapshot(), ring.snapshot()
    priorities.measure(np.arange(80, 132), np.linspace(1, 3, 52, dtype=np.float32))
    append_more(ring, 2)  # Not drawn from since: a killed process has not taken note of these rows.

    def draw(of: Priorities) -> list[np.ndarray]:
        return [*of.draw(np.random.default_rng(4), 200, 0)]

    again = Ring.open(tmp_path / "ring", LAYOUT, 60, 24)
    np.testing.assert_equal(draw(Priorities(again, 0.6)), draw(priorities))
    assert priorities.snapshot() == Priorities(again, 0.6).snapshot() != kept

    again.rollback(header)
    (tmp_path / "ring" / PRIORITIES).write_bytes(kept)
    back = Priorities(again, 0.6)
    assert back.snapshot() == kept
    append_more(again, 1)
    assert (back._tree._priorities.reshape(-1)[132 % 84 : 138 % 84] == 0).all(), "not what other rows had there"
    discard(tmp_path / "ring")
    np.testing.assert_allclose(draw(Priorities(again, 0.6))[1], 1, rtol=1e-5)
