"""The balance of steps finds each way in which a promise could be broken."""

import dataclasses

import numpy as np
import pytest

from tests.faults import numbered
from tests.faults.ledger import NEVER_TOLD, UNSENT, Rows, Start, balance

HORIZON = 8


def start_of(worker, number, episodes, sent, told):
    """A start that made whole episodes and sent the first `sent` of them, each as a segment."""
    lengths = [int(numbered.length_of(worker, episode, HORIZON)) for episode in range(episodes)]
    steps = [
        (episode, step, numbered.reward_of(worker, number, episode, step + 1), 0.25)
        for episode, length in enumerate(lengths)
        for step in range(length)
    ]
    segments = [(episode, 0, length) for episode, length in enumerate(lengths[:sent])]
    return Start(worker, number, np.array(steps, numbered.STEP), segments, told)


def rows_of(*starts, evicted=0):
    """A ring that has stored all that was sent."""
    observation = [
        (start.worker, start.start, episode, step)
        for start in starts
        for episode, first, steps in start.sent
        for step in range(first, first + steps)
    ]
    now = np.array(observation, np.float32)
    worker, start, episode, step = now.astype(int).T
    lengths = numbered.length_of(worker, episode, HORIZON)
    rows = Rows(
        observation=now,
        next_observation=now + np.array([0, 0, 0, 1], np.float32),
        action=np.full(len(now), 0.25, np.float32),
        reward=numbered.reward_of(worker, start, episode, step + 1).astype(np.float32),
        discount=np.where((step + 1 == lengths) & (lengths < HORIZON), 0.0, 1.0).astype(np.float32),
        env_steps=len(now),
    )
    return take(rows, np.arange(evicted, len(now)))


def take(rows, which):
    arrays = {name: value[which] for name, value in vars(rows).items() if isinstance(value, np.ndarray)}
    return dataclasses.replace(rows, **arrays)


@pytest.fixture
def starts():
    # Worker 0 was killed once, with an episode unsent and one on its way.
    return [start_of(0, 0, episodes=4, sent=3, told=1), start_of(0, 1, 3, 3, 2), start_of(1, 0, 3, 3, 2)]


def test_what_is_stored_and_lost_adds_up(starts):
    unstored = dataclasses.replace(starts[0], sent=starts[0].sent[:2])
    result = balance(starts, rows_of(unstored, *starts[1:]), HORIZON)
    assert result.violations == []
    assert result.lost == {NEVER_TOLD: 6, UNSENT: 5}  # Episodes 2 and 3 of worker 0: 8 - 2 and 8 - 3 steps.
    assert result.tails == [11]
    assert result.stored + 11 == result.collected
    assert result.duplicated == result.evicted == 0


def test_the_oldest_may_be_evicted_and_nothing_else(starts):
    assert balance(starts, rows_of(*starts, evicted=10), HORIZON).violations == []
    assert balance(starts, rows_of(*starts, evicted=10), HORIZON).evicted == 10
    starts[0] = dataclasses.replace(starts[0], told=2)
    killed = sum(steps for _, _, steps in starts[0].sent)
    assert balance(starts, rows_of(*starts, evicted=killed + 1), HORIZON).violations == [], "all of a start, and more"
    rows = rows_of(*starts)
    hole = np.delete(np.arange(len(rows.reward)), slice(10, 15))
    (lost,) = balance(starts, take(rows, hole), HORIZON).violations
    assert lost.startswith("worker 0, start 0: steps are missing among its segments up to 2; up to 2 it was told")
    cut = dataclasses.replace(starts[2], sent=starts[2].sent[:2])  # Its last segment was told as stored.
    assert any("worker 1, start 0" in text for text in balance(starts, rows_of(*starts[:2], cut), HORIZON).violations)


def test_duplicates_disorder_and_steps_that_nobody_made_are_found(starts):
    rows = rows_of(*starts)
    twice = take(rows, np.concatenate([np.arange(len(rows.reward)), [3]]))
    result = balance(starts, dataclasses.replace(twice, env_steps=len(twice.reward)), HORIZON)
    assert result.duplicated == 1
    assert "1 transitions are in the ring twice" in result.violations
    swapped = np.arange(len(rows.reward))
    swapped[[4, 5]] = [5, 4]
    assert "steps of worker 0 are out of order" in balance(starts, take(rows, swapped), HORIZON).violations
    shorter = dataclasses.replace(starts[2], steps=starts[2].steps[:-1])
    violations = balance([*starts[:2], shorter], rows, HORIZON).violations
    assert any("was never made by an environment" in text for text in violations)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("next_observation", "another step's next observation"),
        ("action", "another step's action"),
        ("reward", "another step's reward"),
        ("discount", "the wrong discount"),
    ],
)
def test_parts_of_different_steps_are_found(starts, name, words):
    rows = rows_of(*starts)
    array = getattr(rows, name).copy()
    array[7] += 0.5
    (violation,) = balance(starts, dataclasses.replace(rows, **{name: array}), HORIZON).violations
    assert violation.startswith("1 transitions: has") and words in violation
