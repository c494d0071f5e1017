"""What is learned from mini-races and from shaped rewards, against values that are known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.support.segments_for_tests import numbered_segment
from tfagents_system.replay.n_step import MiniRaces
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.replay.sampling import DrawSettings
from tfagents_system.transport.segments import OPTIONAL_COLUMNS, Column, Layout

# A chain of five places with the finish behind the last; action 1 goes on, action 0 back. Going on costs 1, back 0.3.
PLACES, GAMMA = 5, 0.9
CHAIN = Layout((Column("observation", (1,), "float32"),), (Column("action", (), "int32", 2),))


def step(place: int, action: int) -> tuple[int, float, bool]:
    following = place + 1 if action else max(0, place - 1)
    return following, -1.0 if action else -0.3, following == PLACES


def best_values(steps: int | None) -> np.ndarray:
    """Q*(s, a): with a discount and without a time limit, or the sums of so many steps."""
    q = np.zeros((PLACES, 2))
    for _ in range(1000 if steps is None else steps):
        value = np.append(q.max(axis=1), 0.0)
        backed_up = [
            [r + (GAMMA if steps is None else 1.0) * value[s] for s, r, _ in (step(p, a) for a in (0, 1))]
            for p in range(PLACES)
        ]
        q = np.array(backed_up)
    return q


def chain_ring(folder: Path, potential: np.ndarray | None) -> Ring:
    """Random walks; `potential` `[PLACES + 1]`."""
    layout = CHAIN if potential is None else dataclasses.replace(CHAIN, potential=OPTIONAL_COLUMNS["potential"])
    ring, rng = Ring.open(folder, layout, 4000), np.random.default_rng(0)
    for number in range(120):
        places, actions, rewards, discounts = [int(rng.integers(PLACES))], list[int](), list[float](), list[float]()
        while len(actions) < 25 and (not discounts or discounts[-1]):
            actions.append(int(rng.integers(2)))
            place, reward, is_over = step(places[-1], actions[-1])
            places.append(place)
            rewards.append(reward)
            discounts.append(0.0 if is_over else 1.0)
        segment = dataclasses.replace(
            numbered_segment(number=number, steps=len(actions)),
            observation=[np.array(places, np.float32)[:, None]],
            action=[np.array(actions, np.int32)],
            reward=np.array(rewards, np.float32),
            discount=np.array(discounts, np.float32),
            potential=None if potential is None else potential[places].astype(np.float32),
        )
        assert ring.append(segment)
    return ring


@pytest.mark.parametrize("algorithm_takes", ["the whole factor", "what gamma is multiplied with"])
def test_potentials_leave_the_greedy_policy_as_it_is(tmp_path: Path, algorithm_takes: str) -> None:
    """Q of shaped rewards is Q* - Phi(s) (Ng, Harada and Russell, 1999), here by exact backups of what is drawn."""
    whole = algorithm_takes == "the whole factor"
    potential = np.array([3.0, -20.0, 7.0, 40.0, -5.0, 11.0])  # Also of the finish: it must not count.
    q = {}
    for name, phi in {"plain": None, "shaped": potential}.items():
        ring, form = chain_ring(tmp_path / name, phi), TransitionForm(1)
        settings = DrawSettings(64, form, 99, 0, discount=GAMMA, whole_bootstrap=whole)
        drawn = form.draw(ring, np.random.default_rng(1), settings, 40)
        before, behind, actions = (
            drawn.observation[0].ravel(),
            drawn.next_observation[0].ravel(),
            drawn.action[0].ravel(),
        )
        factor = drawn.discount.ravel() * (1.0 if whole else GAMMA)
        table = np.zeros((PLACES + 1, 2))
        for _ in range(300):
            table[before.astype(int), actions] = drawn.reward.ravel() + factor * table[behind.astype(int)].max(axis=1)
        q[name] = table[:PLACES]
    np.testing.assert_allclose(q["plain"], best_values(None), atol=1e-4)
    np.testing.assert_allclose(q["shaped"], best_values(None) - potential[:PLACES, None], atol=1e-3)
    np.testing.assert_array_equal(q["shaped"].argmax(axis=1), q["plain"].argmax(axis=1))
    assert set(q["plain"].argmax(axis=1)) == {0, 1}, "a policy that is not the same everywhere"


@pytest.mark.parametrize("shaped", [False, True])
def test_values_of_mini_races_are_the_sums_of_the_steps_to_come(tmp_path: Path, shaped: bool) -> None:
    """Q(s, a, t) is that of dynamic programming over T - t steps; with potentials less Phi(s)."""
    races = MiniRaces(6, (0, 0))
    potential = np.array([3.0, -2.0, 7.0, 4.0, -5.0, 11.0])
    ring = chain_ring(tmp_path / "ring", potential if shaped else None)
    form = TransitionForm(1, races=races)
    settings = DrawSettings(64, form, 99, 0, discount=1.0, whole_bootstrap=True)
    drawn = form.draw(ring, np.random.default_rng(1), settings, 100)
    assert drawn.horizon_time is not None and drawn.next_horizon_time is not None
    before, behind, actions = drawn.observation[0].ravel(), drawn.next_observation[0].ravel(), drawn.action[0].ravel()
    times, following = (
        np.rint(each.ravel() * races.steps).astype(int) for each in (drawn.horizon_time, drawn.next_horizon_time)
    )
    table = np.zeros((races.steps + 1, PLACES + 1, 2))
    for _ in range(races.steps + 1):
        value = table[following, behind.astype(int)].max(axis=1)
        table[times, before.astype(int), actions] = drawn.reward.ravel() + drawn.discount.ravel() * value
    for t in range(races.steps):
        wanted = best_values(races.steps - t) - (potential[:PLACES, None] if shaped else 0.0)
        np.testing.assert_allclose(table[t, :PLACES], wanted, atol=1e-4, err_msg=str(t))
